"""The memory plan of a run: every part by hand, what must grow with what, and suggestions that reach their target."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.zoo import zoo_config
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.policy.bundled import SMOLLM2, bundled_model_folder
from vigneron.policy.load import local_config
from vigneron.policy.microbatches import fits
from vigneron.policy.model_size import ModelSize, Weight
from vigneron.recipe import check_config
from vigneron.training.memory_fit import CHANGES, Fitting, changed, check_limit
from vigneron.training.memory_parts import CACHE, GB
from vigneron.training.memory_plan import CONTEXT_BYTES, RunMemory, estimate
from vigneron.training.peak_memory import PeakMemory
from vigneron.training.planned_passes import passes_of

LINEAR = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24)
HEAD = EMBEDDING = 260 * 16
NORMS = 5 * 16
WEIGHTS = LINEAR + HEAD + EMBEDDING + NORMS


def config_of(folder: Path, **changes: Any) -> Config:
    given: dict[str, Any] = {
        "method": {"name": "grpo"},
        "data": {"task": "antonyms"},
        "reward": {"kind": "binary"},
        "prompts_per_step": 3,
        "group_size": 4,
        "max_new_tokens": 12,
        "microbatch_tokens": 64,
        "steps": 2,
        **changes,
    }
    given["model"] = {"name": str(folder), **given.get("model", {})}
    return check_config(given, "tiny")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and no weights."""
    folder = tmp_path_factory.mktemp("model")
    zoo_config("Llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def memory(model: Path) -> RunMemory:
    found = RunMemory.of(config_of(model), 20)
    assert found is not None
    return found


def parts(memory: RunMemory, config: Config) -> dict[str, int]:
    return {part.name: part.bytes for part in memory.plan(config).parts}


def test_every_part_of_full_training(memory: RunMemory, model: Path) -> None:
    found = parts(memory, config_of(model))
    assert found.pop("gradients of CUDA graphs") == 4 * (WEIGHTS - HEAD)
    assert found.pop("activations of CUDA graphs") > 0
    assert found["trained weights"] == found["gradients"] == 4 * WEIGHTS
    assert found["optimizer moments"] == 8 * WEIGHTS
    assert found["reference"] == 2 * (LINEAR + HEAD) + 4 * (EMBEDDING + NORMS)
    assert found["the engine's bfloat16 matrices"] == 2 * (LINEAR + HEAD)
    assert found["key/value cache"] == 3 * (20 + 4 * 12) * 2 * 2 * (4 + 4) * 2
    assert found["drawing of tokens"] == 5 * 12 * 260 * 4
    assert found["reference's hidden states"] == 12 * 12 * 16 * 4
    assert found["CUDA context and kernels"] == CONTEXT_BYTES
    assert found["activations"] > 0 < found["head and temporaries"]
    assert set(found) == {
        "trained weights",
        "gradients",
        "optimizer moments",
        "reference",
        "the engine's bfloat16 matrices",
        "CUDA context and kernels",
        "activations",
        "head and temporaries",
        "reference's hidden states",
        "key/value cache",
        "drawing of tokens",
    }


def test_every_part_of_an_adapter(memory: RunMemory, model: Path) -> None:
    found = parts(memory, config_of(model, model={"lora": {"rank": 2}}))
    adapter = 2 * 2 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3)
    assert found["frozen base"] == 2 * (LINEAR + HEAD + EMBEDDING) + 4 * NORMS
    assert found["adapter"] == found["gradients"] == 4 * adapter
    assert found["optimizer moments"] == 8 * adapter
    assert "reference" not in found
    assert "the engine's bfloat16 matrices" not in found


def test_phases_and_totals(memory: RunMemory, model: Path) -> None:
    plan = memory.plan(config_of(model, model={"graphs": False}))
    found = {part.name: part for part in plan.parts}
    only_sampling = {name for name, part in found.items() if not part.update}
    only_update = {name for name, part in found.items() if not part.sampling}
    assert only_sampling == {"key/value cache", "drawing of tokens"}
    assert only_update == {"gradients", "activations", "head and temporaries", "reference's hidden states"}
    whole = sum(part.bytes for part in plan.parts)
    assert plan.sampling_bytes == whole - sum(found[name].bytes for name in only_update)
    assert plan.update_bytes == whole - sum(found[name].bytes for name in only_sampling)
    assert plan.peak_bytes == max(plan.sampling_bytes, plan.update_bytes) == plan.allocated_bytes + CONTEXT_BYTES
    graphed = memory.plan(config_of(model))
    more = {part.name: part for part in graphed.parts if part.name not in found}
    assert set(more) == {"gradients of CUDA graphs", "activations of CUDA graphs"}
    assert all(part.sampling and part.update for part in more.values())
    assert [part.by_torch for part in more.values()] == [True, False]


def test_how_weights_and_moments_are_held(memory: RunMemory, model: Path) -> None:
    full = parts(memory, config_of(model))
    narrow = parts(memory, config_of(model, model={"weights": "bfloat16"}))
    held = 2 * (LINEAR + HEAD + EMBEDDING) + 4 * NORMS
    assert narrow["trained weights"] == narrow["gradients"] == narrow["reference"] == held
    assert "the engine's bfloat16 matrices" not in narrow
    assert narrow["optimizer moments"] == full["optimizer moments"]
    assert "optimizer moments" not in parts(memory, config_of(model, optimizer={"offload": True}))
    # Of 260 × 16 values the moments are in 8 bits, in blocks of 256; smaller tensors keep float32.
    eight_bit = 2 * (2 * HEAD + 8 * 17) + 8 * (LINEAR + NORMS)
    assert parts(memory, config_of(model, optimizer={"kind": "adamw_8bit"}))["optimizer moments"] == eight_bit


def test_a_critic_of_its_own_and_a_float32_run(memory: RunMemory, model: Path) -> None:
    own = parts(memory, config_of(model, method={"name": "reinforce", "critic": {"network": "own"}}))
    shared = parts(memory, config_of(model, method={"name": "reinforce"}))
    assert own["critic"] == 4 * WEIGHTS + 8 * WEIGHTS
    assert own["activations"] == pytest.approx(2 * shared["activations"], abs=1)
    plain = parts(memory, config_of(model, model={"dtype": "float32"}))
    assert plain["reference"] == 4 * WEIGHTS
    assert "the engine's bfloat16 matrices" not in plain


SIZES = st.integers(1, 64)


@settings(max_examples=10, deadline=None)
@given(prompts=SIZES, group=st.integers(2, 16), tokens=st.integers(64, 4096))
def test_more_samples_never_take_less(memory: RunMemory, model: Path, prompts: int, group: int, tokens: int) -> None:
    config = config_of(model)
    small = config.model_copy(update={"prompts_per_step": prompts, "group_size": group, "microbatch_tokens": tokens})
    plan = memory.plan(small)
    for key in ("prompts_per_step", "group_size"):
        larger = memory.plan(small.model_copy(update={key: 2 * getattr(small, key)}))
        cache = [next(part.bytes for part in each.parts if part.name == CACHE) for each in (plan, larger)]
        assert cache[1] > cache[0]
        assert larger.fixed_bytes == plan.fixed_bytes <= plan.least_bytes <= plan.peak_bytes


@settings(max_examples=50, deadline=None)
@given(prompts=SIZES, group=st.integers(1, 16), prompt=st.integers(1, 40), tokens=st.integers(32, 4096))
def test_passes_have_all_samples_and_keep_to_the_budget(
    model: Path, prompts: int, group: int, prompt: int, tokens: int
) -> None:
    config = config_of(model).model_copy(update={"prompts_per_step": prompts, "group_size": group})
    passes = passes_of(config, prompt, tokens, packs=True)
    assert sum(size.rows for size in passes) == prompts * group
    assert sum(size.predicted for size in passes) == prompts * group * 12
    for size in passes:
        assert size.rows == 1 or fits(size.tokens + size.rows, size.rows * (prompt + 12), tokens)
        assert size.rows * 11 + prompt <= size.tokens <= size.rows * (prompt + 11)


def test_every_change_saves_where_it_is_meant_to(memory: RunMemory, model: Path) -> None:
    config = config_of(model, prompts_per_step=16)
    before = memory.plan(config)
    for change in (change for change in CHANGES if change.text != "4bit"):
        assert memory.plan(changed(config, [change])).peak_bytes < before.peak_bytes, change


class TestFitting:
    """On a model of billions of weights, counted and not built."""

    @pytest.fixture(scope="class")
    def large(self, model: Path) -> RunMemory:
        found = RunMemory.of(config_of(model), 20)
        assert found is not None
        whole = tuple(Weight(2**20, trained=True, narrow=True, matrix=True, quantised=True) for _ in range(2048))
        base = tuple(Weight(2**20, trained=False, narrow=True, matrix=True, quantised=True) for _ in range(2048))
        for lora in (None, "any"):
            weights = whole if lora is None else (*base, Weight(2**20, trained=True, adapter=True))
            found._sizes[lora, False] = ModelSize(weights, 2**31, 2**15, 16, 260)
        found.size = lambda lora, scorer: found._sizes[lora and "any", scorer]  # type: ignore[method-assign]
        return found

    @pytest.mark.parametrize("target", [3, 8, 16, 48])
    def test_the_suggested_changes_reach_the_target(self, large: RunMemory, model: Path, target: int) -> None:
        config = config_of(model)
        found = Fitting(large, config).fit(target)
        assert found is not None
        assert large.plan(changed(config, found.changes), target).least_bytes <= target * GB
        for left_out in found.changes:  # none of them is idle
            fewer = [change for change in found.changes if change is not left_out]
            keys = {change.key for change in fewer}
            if left_out.key != "model.lora" or "model.weights" not in keys:
                assert large.plan(changed(config, fewer), target).least_bytes > target * GB

    def test_cheap_changes_come_first(self, large: RunMemory, model: Path) -> None:
        """2³¹ weights: 8 + 8 + 16 + 4 + 4 GB, of CUDA graphs 8 and 8, and the context."""
        search = Fitting(large, config_of(model))
        lines = {size: [str(change) for change in search.fit(size).changes] for size in (80, 24, 8)}  # type: ignore[union-attr]
        assert lines[80] == []
        assert lines[24] == ["model.weights=bfloat16", "optimizer.kind=adamw_8bit", "model.graphs=false"]
        assert lines[8] == ["model.lora={}"]

    def test_a_model_that_nothing_makes_fit(self, large: RunMemory, model: Path) -> None:
        assert Fitting(large, config_of(model)).fit(1) is None

    def test_changes_that_the_config_refuses_are_not_offered(self, large: RunMemory, model: Path) -> None:
        found = Fitting(large, config_of(model, model={"chat": "minted"})).fit(8)
        assert found is None or "model.lora={}" not in map(str, found.changes)


def test_a_gpu_that_is_too_small_is_told_before_loading(model: Path) -> None:
    """The folder has no weights: nothing was loaded."""
    config = config_of(model)
    with pytest.raises(UserError) as error:
        check_limit(config, 0.5, "model.memory_gb")
    line = str(error.value)
    assert line.startswith("model.memory_gb has 0.5 GB, but the run needs at least 0.8 (CUDA context and kernels 0.8")
    assert "choose a smaller model" in line
    assert "\n" not in line
    check_limit(config, 8, "the GPU")


def test_a_hub_model_that_is_not_here_has_no_estimate() -> None:
    config = config_of(Path("nobody/nothing"))
    assert estimate(config) is None
    check_limit(config, 0.1, "the GPU")


def test_the_bundled_model_has_the_shape_of_its_converted_folder() -> None:
    from transformers import AutoConfig

    from vigneron.policy.bundled import BUNDLED_SHAPE

    converted = AutoConfig.from_pretrained(bundled_model_folder(SMOLLM2))
    assert {key: getattr(converted, key) for key in BUNDLED_SHAPE} == BUNDLED_SHAPE
    assert local_config(SMOLLM2).hidden_size == 576


def test_no_peak_is_recorded_on_a_cpu() -> None:
    assert PeakMemory(torch.device("cpu")).risen() == {}
