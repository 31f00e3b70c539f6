"""The memory plan of a run: every part by hand, and what must grow with what."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.memory_plans import config_of, weightless_llama
from support.zoo import zoo_config
from vigneron.config import Config, GameConfig
from vigneron.config.phases import sampling_phase
from vigneron.policy.bundled import SMOLLM2, bundled_model_folder
from vigneron.policy.microbatches import fits
from vigneron.policy.model_names import local_config
from vigneron.policy.model_size import ModelSize, Weight, held_bytes
from vigneron.training.held_parts import CONTEXT_BYTES, HeldParts
from vigneron.training.memory import GAPS
from vigneron.training.memory_fit import check_limit
from vigneron.training.memory_parts import CACHE, pinned_bytes
from vigneron.training.memory_plan import RunMemory, _Counting, estimate, gpu_gigabytes
from vigneron.training.method_copies import Copies
from vigneron.training.peak_memory import PeakMemory
from vigneron.training.planned_passes import passes_of
from vigneron.training.sampling_graphs import sampling_graph_bytes
from vigneron.values import GB, memory_text

LINEAR = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24)
HEAD = EMBEDDING = 260 * 16
NORMS = 5 * 16
WEIGHTS = LINEAR + HEAD + EMBEDDING + NORMS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weightless_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def memory(model: Path) -> RunMemory:
    found = RunMemory.of(config_of(model), 20)
    assert found is not None
    return found


def parts(memory: RunMemory, config: Config) -> dict[str, int]:
    return {part.name: part.bytes for part in memory.plan(config).parts}


@pytest.mark.slow
def test_every_part_of_full_training(memory: RunMemory, model: Path) -> None:
    found = parts(memory, config_of(model))
    assert found.pop("gradients of CUDA graphs") == 4 * (WEIGHTS - HEAD)
    assert found.pop("activations of CUDA graphs") > 0
    assert found["trained weights"] == found["gradients"] == 4 * WEIGHTS
    assert found["optimizer moments"] == 8 * WEIGHTS
    assert found["reference"] == 2 * (LINEAR + HEAD) + 4 * (EMBEDDING + NORMS)
    assert found["the engine's bfloat16 matrices"] == 2 * (LINEAR + HEAD)
    assert found["key/value cache"] == 3 * (64 + 4 * 64) * 2 * 2 * (4 + 4) * 2  # in slots of 64
    assert found["drawing of tokens"] == 12 * 260 * 4
    assert found["hidden states for the exact KL"] == 12 * 12 * 16 * 4
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
        "hidden states for the exact KL",
        "key/value cache",
        "drawing of tokens",
        "CUDA graphs of sampling",
    }


@pytest.mark.slow
def test_every_part_of_an_adapter(memory: RunMemory, model: Path) -> None:
    found = parts(memory, config_of(model, model={"lora": {"rank": 2}}))
    adapter = 2 * 2 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3)
    assert found["frozen base"] == 2 * (LINEAR + HEAD + EMBEDDING) + 4 * NORMS
    assert found["adapter"] == found["gradients"] == 4 * adapter
    assert found["optimizer moments"] == 8 * adapter
    assert "reference" not in found
    assert found["the engine's bfloat16 matrices"] == 2 * adapter


@pytest.mark.slow
def test_phases_and_totals(memory: RunMemory, model: Path) -> None:
    plan = memory.plan(config_of(model, model={"graphs": False}))
    found = {part.name: part for part in plan.parts}
    only_sampling = {name for name, part in found.items() if not part.update}
    only_update = {name for name, part in found.items() if not part.sampling}
    assert only_sampling == {"key/value cache", "drawing of tokens"}
    assert only_update == {"gradients", "activations", "head and temporaries", "hidden states for the exact KL"}
    whole = sum(part.bytes for part in plan.parts)
    assert plan.sampling_bytes == whole - sum(found[name].bytes for name in only_update)
    assert plan.update_bytes == whole - sum(found[name].bytes for name in only_sampling)
    assert plan.peak_bytes == max(plan.sampling_bytes, plan.update_bytes)
    uncounted = [part for part in plan.parts if not part.by_torch]
    assert {part.name for part in uncounted} == {"CUDA context and kernels", "CUDA graphs of sampling"}
    assert plan.peak_bytes == plan.allocated_bytes + sum(part.bytes for part in uncounted)
    graphed = memory.plan(config_of(model))
    more = {part.name: part for part in graphed.parts if part.name not in found}
    assert set(more) == {"gradients of CUDA graphs", "activations of CUDA graphs"}
    assert all(part.sampling and part.update for part in more.values())
    assert [part.by_torch for part in more.values()] == [True, False]


def test_an_offloaded_reference_is_in_memory_for_its_pass_alone(memory: RunMemory, model: Path) -> None:
    """Its pass has no gradients and keeps no activations: it takes no more than the update."""
    plan = memory.plan(config_of(model, model={"offload_reference": True, "graphs": False}))
    found = {part.name: part for part in plan.parts}
    reference = found["reference, offloaded"]
    assert (reference.sampling, reference.scoring, reference.update) == (False, True, False)
    not_then = ("gradients", "activations", "key/value cache", "drawing of tokens")
    assert plan.scoring_bytes == sum(part.bytes for part in plan.parts) - sum(found[name].bytes for name in not_then)
    assert plan.peak_bytes == max(plan.sampling_bytes, plan.update_bytes) >= plan.scoring_bytes
    here = memory.plan(config_of(model, model={"graphs": False}))
    assert here.peak_bytes - plan.peak_bytes == reference.bytes


@pytest.mark.slow
def test_how_weights_and_moments_are_held(memory: RunMemory, model: Path) -> None:
    full = parts(memory, config_of(model))
    halved = parts(memory, config_of(model, model={"weights": "bfloat16"}))
    held = 2 * (LINEAR + HEAD + EMBEDDING) + 4 * NORMS
    assert halved["trained weights"] == halved["gradients"] == halved["reference"] == held
    assert "the engine's bfloat16 matrices" not in halved
    assert halved["optimizer moments"] == full["optimizer moments"]
    assert "optimizer moments" not in parts(memory, config_of(model, optimizer={"offload": True}))
    offloaded = parts(memory, config_of(model, model={"offload_reference": True}))
    assert "reference" not in offloaded
    assert offloaded["reference's head"] == 2 * HEAD  # for the exact KL, in bfloat16
    assert offloaded["reference's head"] + offloaded["reference, offloaded"] == full["reference"]
    estimated = config_of(model, model={"offload_reference": True}, method={"name": "grpo", "kl": {"estimator": "k3"}})
    assert parts(memory, estimated)["reference, offloaded"] == full["reference"]
    # Of 260 × 16 values the moments are in 8 bits, in blocks of 256; smaller tensors keep float32.
    eight_bit = 2 * (2 * HEAD + 8 * 17) + 8 * (LINEAR + NORMS)
    assert parts(memory, config_of(model, optimizer={"kind": "adamw_8bit"}))["optimizer moments"] == eight_bit


@pytest.mark.slow
def test_a_critic_of_its_own_and_a_float32_run(memory: RunMemory, model: Path) -> None:
    own = parts(memory, config_of(model, method={"name": "reinforce", "critic": {"network": "own"}}))
    shared = parts(memory, config_of(model, method={"name": "reinforce"}))
    assert own["critic"] == 4 * WEIGHTS + 8 * WEIGHTS
    assert own["activations"] == pytest.approx(2 * shared["activations"], abs=1)
    plain = parts(memory, config_of(model, model={"dtype": "float32"}))
    assert plain["reference"] == 4 * WEIGHTS
    assert "the engine's bfloat16 matrices" not in plain


@pytest.mark.slow
def test_trpo_keeps_a_copy_of_the_policy_that_sampled(memory: RunMemory, model: Path) -> None:
    found = parts(memory, config_of(model, method={"name": "trpo"}))
    assert found["copy of the policy that sampled"] == found["reference"]
    assert found["hidden states for the exact KL"] == 12 * 12 * 16 * 4
    offloaded = parts(memory, config_of(model, method={"name": "trpo"}, model={"offload_reference": True}))
    assert "reference's head" not in offloaded
    adapted = parts(memory, config_of(model, method={"name": "trpo"}, model={"lora": {"rank": 2}}))
    assert adapted["copy of the policy that sampled"] > adapted["frozen base"]


def test_a_trust_region_has_vectors_instead_of_moments(memory: RunMemory, model: Path) -> None:
    constraint = {"name": "trpo", "form": "constraint", "critic": {"network": "own"}}
    found = parts(memory, config_of(model, method=constraint))
    assert "optimizer moments" not in found
    assert found["vectors of the trust region"] == 9 * 4 * WEIGHTS
    assert found["critic"] == 4 * WEIGHTS + 8 * WEIGHTS  # its own moments


def test_a_reference_that_the_reward_asks_for(memory: RunMemory, model: Path) -> None:
    reward = {"kind": "probability", "by": "reference"}
    method = {"name": "grpo", "kl": {"coefficient": 0.0}}
    found = parts(memory, config_of(model, method=method, reward=reward))
    assert found["reference"] == 2 * (LINEAR + HEAD) + 4 * (EMBEDDING + NORMS)
    assert "reference" not in parts(memory, config_of(model, method=method))
    offloaded = parts(memory, config_of(model, method=method, reward=reward, model={"offload_reference": True}))
    assert offloaded["reference, offloaded"] == found["reference"]


def test_a_frozen_player_of_a_game(memory: RunMemory, model: Path) -> None:
    players = {role: {"kind": "local", "model": str(model)} for role in ("black", "white")}
    game = GameConfig.model_validate({"kind": "game", "class": "games:Chess", "players": players})
    held = HeldParts(config_of(model).model_copy(update={"environment": game}), memory.size, engine=True)
    found = [part.bytes for part in held.parts() if part.name == "frozen player"]
    assert found == 2 * [2 * (LINEAR + HEAD + EMBEDDING) + 4 * NORMS]  # each role has its own


@pytest.mark.slow
def test_a_head_that_is_tied_to_a_scaled_embedding_stays_float32(tmp_path: Path) -> None:
    """Gemma's embedding computes with its weight: it is not held in bfloat16, nor is the head that is tied to it."""
    zoo_config("Gemma").save_pretrained(tmp_path)
    config = config_of(tmp_path, model={"weights": "bfloat16", "offload_reference": True})
    memory = RunMemory.of(config, 20)
    assert memory is not None
    size = memory.size(None, False)
    (tied,) = [weight for weight in size.weights if weight.tied]
    assert not tied.castable
    assert parts(memory, config)["reference's head"] == 4 * tied.count == 4 * size.vocabulary * size.hidden


@pytest.mark.parametrize("name", ["Mamba", pytest.param("Gemma 3n text", marks=pytest.mark.slow), "Falcon-H1"])
def test_a_plan_of_an_unusual_architecture(tmp_path: Path, name: str) -> None:
    """Without attention; with an inner size for each layer, and shared keys; one that cannot have a single layer."""
    zoo_config(name).save_pretrained(tmp_path)
    config = config_of(tmp_path)
    memory = RunMemory.of(config, 20)
    assert memory is not None
    found = parts(memory, config)
    assert found["activations"] > 0 < found["drawing of tokens"]
    assert (CACHE in found) == (name == "Gemma 3n text")


def test_host_memory_is_rounded_up_to_powers_of_two(memory: RunMemory, model: Path) -> None:
    assert pinned_bytes([0, 1, 4096, 4097]) == 1 + 4096 + 8192
    assert memory.plan(config_of(model)).host_bytes == 0
    both = config_of(model, model={"offload_reference": True}, optimizer={"offload": True})
    matrices = 2 * ([256] * 2 + [128] * 2 + [384] * 3)  # of 2 layers: query, output; key, value; 3 of the MLP
    reference = [2 * count for count in matrices] + [2 * HEAD, 4 * EMBEDDING] + [4 * 16] * 5
    moments = 2 * [4 * count for count in [*matrices, HEAD, EMBEDDING, *[16] * 5]]
    up = sum(2 ** (size - 1).bit_length() for size in [*reference, *moments])
    assert memory.plan(both).host_bytes == up > sum(reference) + sum(moments)


def test_vllm_in_the_training_process(memory: RunMemory, model: Path) -> None:
    """Its copy of the weights with a quarter more, 2 GB, and a cache from half of what training leaves free."""
    sampling = {"kind": "vllm"}
    config = config_of(model, scale={"sampling": sampling}, model={"graphs": False})
    plan = memory.plan(config, 10)
    found = {part.name: part for part in plan.parts}
    own = 2 * WEIGHTS * 5 // 4 + 2 * GB
    assert found["vLLM's weights and buffers"].bytes == own
    training = sum(found[name].bytes for name in ("trained weights", "gradients", "optimizer moments", "reference"))
    assert found[CACHE].bytes == pytest.approx(0.5 * (10 * GB - training - CONTEXT_BYTES) - own, abs=1)
    assert (found[CACHE].sampling, found[CACHE].update) == (True, False)
    assert "the engine's bfloat16 matrices" not in found
    assert "drawing of tokens" not in found
    assert plan.sampling_bytes > 2 * GB > plan.update_bytes
    shared = config_of(model, scale={"sampling": {**sampling, "memory_share": 0.4}})
    assert sum(part.bytes for part in memory.plan(shared, 10).parts if not part.update) == round(0.4 * 10 * GB)
    server = config_of(model, scale={"sampling": {**sampling, "url": "http://127.0.0.1:8000"}})
    assert not any(name.startswith("vLLM") for name in parts(memory, server))


def test_the_tables_of_the_memory_page(model: Path) -> None:
    """Every kind of weights and optimizer, of a model that is one matrix of 1.5 billion weights."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "memory.md").read_text()
    rows = re.findall(r"^\| `(auto|bfloat16)`[^|]*\| `(adamw\w*)` \| (true|false) \|(.*)\|$", page, re.MULTILINE)
    assert len(rows) == 2 * 2 * 2
    count = 1_500_000_000
    matrix = Weight(count, trained=True, castable=True, matrix=True, linear=True)
    size = ModelSize((matrix,), 1, 1, 1)
    for weights, kind, offload, numbers in rows:
        config = config_of(model, model={"weights": weights}, optimizer={"kind": kind, "offload": offload == "true"})
        held = {part.name: part.bytes for part in HeldParts(config, lambda lora, scorer: size, engine=True).parts()}
        own = [held[name] for name in ("trained weights", "gradients", "optimizer moments")]
        beside = held["reference"] + held.get("the engine's bfloat16 matrices", 0)
        expected = [*own, sum(own), sum(own), sum(own) + beside, sum(own) + beside]
        shown = [float(number) for number in numbers.split("|")]
        per_weight = [count if place not in (4, 6) else GB for place in range(7)]
        digits = [2 if place not in (4, 6) else 1 for place in range(7)]
        found = [round(byte / per, digit) for byte, per, digit in zip(expected, per_weight, digits, strict=True)]
        assert shown == found, (weights, kind, offload)
    frozen = Weight(8_000_000_000, trained=False, castable=True, matrix=True, quantised=True)
    for quantised, number in ((False, "14.9"), (True, "3.8")):
        assert f"{held_bytes([frozen], bfloat16=True, quantised=quantised) / GB:.1f}" == number
        assert f"| {number} |" in page


DATA = {"train": "rows.jsonl"}


@pytest.mark.parametrize(
    ("changes", "held_out", "phase"),
    [
        ({"method": {"name": "grpo"}}, False, "sampling"),
        ({"method": {"name": "sft"}, "group_size": 1}, True, "evaluation"),
        ({"method": {"name": "sft"}, "group_size": 1}, False, None),
        ({"method": {"name": "sft"}, "group_size": 1, "eval_every": 0}, True, None),
        ({"method": {"name": "dpo"}, "group_size": 1, "max_new_tokens": 16, "reward": None}, True, None),
        ({"method": {"name": "reward_model"}, "group_size": 1, "max_new_tokens": 16, "reward": None}, True, None),
    ],
)
def test_the_phase_in_which_a_run_samples(
    memory: RunMemory, model: Path, changes: dict[str, Any], held_out: bool, phase: str | None
) -> None:
    found = RunMemory(memory.model, 20, held_out=int(held_out))
    config = config_of(model, **{"data": DATA, **changes})
    assert sampling_phase(config, held_out=held_out) == phase
    counting = _Counting(found, config, 80)
    assert counting.phase == phase
    names = {part.name for part in counting.fixed_parts()}
    assert (
        ("the engine's bfloat16 matrices" in names)
        == (phase is not None)
        == Copies.of(config, held_out=held_out).engine
    )


def test_an_evaluation_of_many_rows_has_the_larger_cache(memory: RunMemory, model: Path) -> None:
    """100 prompts of 20 tokens with an answer of 12 each, in 64 slots both, where a step has 3 with four."""
    many = RunMemory(memory.model, 20, held_out=100)
    many._passes, many._heads = memory._passes, memory._heads  # counted once
    token = 2 * 2 * (4 + 4) * 2
    assert parts(many, config_of(model))[CACHE] == 100 * (64 + 64) * token
    assert parts(many, config_of(model))["drawing of tokens"] == 100 * 260 * 4
    assert parts(many, config_of(model, eval_every=0))[CACHE] == 3 * (64 + 4 * 64) * token
    narrow = config_of(model, model={"cache_gb": 10.5 * (64 + 64) * token / GB})  # of ten rows and a half
    assert parts(many, narrow)["drawing of tokens"] == 10 * 260 * 4
    tiny = config_of(model, eval_every=0, model={"cache_gb": 1e-9})
    assert parts(many, tiny)[CACHE] == (64 + 64) * token  # of one of a group's four samples, at least
    # 21 pages: each sample is expected to need the first of its four, beside its prompt's
    longer = config_of(model, max_new_tokens=256, model={"cache_gb": 21 * 64 * token / GB})
    assert parts(many, longer)["drawing of tokens"] == 10 * 260 * 4


def test_graphs_of_sampling_keep_what_the_largest_takes(memory: RunMemory, model: Path) -> None:
    """3 prompts of 20 tokens: in a layer 16 hidden numbers in 4 + 2 bytes, and 24 three times in 2. Or the logits of 12
    samples, 260 each in 4 bytes."""
    read, decoded = 3 * 20 * (6 * 16 + 6 * 24), 12 * 260 * 4
    assert read > decoded
    assert parts(memory, config_of(model))["CUDA graphs of sampling"] == read
    assert parts(memory, config_of(model, group_size=16))["CUDA graphs of sampling"] == 4 * decoded
    text, config = memory.model.get_text_config(), config_of(model)

    def count(config: Config, parameters: int = 1000, most_tokens: int = 64, held_out: int = 1) -> int:
        return sampling_graph_bytes(config, text, parameters, 20, most_tokens, held_out)

    assert count(config, parameters=10**12) == decoded  # 10 tokens at most are a graph
    assert count(config, most_tokens=30, held_out=100) == 100 * 260 * 4
    assert count(config_of(model, sampling={"top_k": 4})) == 5 * decoded
    assert count(config.model_copy(update={"prompts_per_step": 2**20})) == GB
    assert count(config_of(model, scale={"sampling": {"kind": "vllm"}})) == 0
    talking = config_of(model, environment={"kind": "python", "class": "my_env:Wordle", "max_reply_tokens": 6})
    assert count(talking, most_tokens=500) == 12 * 6 * (6 * 16 + 6 * 24)


@pytest.mark.slow
def test_a_run_without_sampling_has_no_bytes_of_it(memory: RunMemory, model: Path) -> None:
    pairs = {"method": {"name": "dpo"}, "group_size": 1, "max_new_tokens": 16, "reward": None, "data": DATA}
    plan = memory.plan(config_of(model, **pairs))
    assert plan.sampling is None
    assert plan.sampling_bytes == 0
    assert not any(part.sampling for part in plan.parts)
    assert CACHE not in {part.name for part in plan.parts}


def test_graphs_leave_fewer_tokens_and_less_cache(memory: RunMemory, model: Path) -> None:
    """As `find_sizes` counts them: once more the gradients. Where all tokens that are wanted fit, the cache is smaller;
    where they do not, there are no graphs."""
    caches = []
    for graphs in (True, False):
        counting = _Counting(memory, config_of(model, model={"graphs": graphs}), 4)
        caches.append(counting.sizes.cache_bytes)
        assert not counting.sizes.tight
    assert caches[1] - caches[0] == pytest.approx(0.8 * 4 * WEIGHTS, abs=2)
    tight = [
        _Counting(memory, config_of(model, model={"graphs": graphs}, microbatch_tokens="auto"), 0.82 / (1 - GAPS)).sizes
        for graphs in (True, False)
    ]
    assert tight[0] == tight[1]
    assert tight[0].tight


@pytest.mark.slow
def test_where_few_tokens_fit_small_passes_say_how_many(memory: RunMemory, model: Path) -> None:
    """With an exact KL the head takes most of a pass, and less for tokens within one of its chunks. By passes of 2,048
    tokens and more, none would fit; by those of 512 and 1,024 several samples do, and the plan fits."""
    config = config_of(model, microbatch_tokens="auto")
    size = 0.806 / (1 - GAPS)
    counting = _Counting(memory, config, size)
    assert counting.fitting(16384, checkpointing=True, graphs=False)[0] == 0
    sizes = counting.sizes
    assert sizes.checkpointing
    assert 256 <= sizes.microbatch_tokens <= 1024
    assert memory.plan(config, size).least_bytes <= size * GB


def test_fewer_tokens_fit_beside_a_critic_of_its_own(memory: RunMemory, model: Path) -> None:
    methods = [{"name": "reinforce"}, {"name": "reinforce", "critic": {"network": "own"}}]
    sizes = []
    for method in methods:
        config = config_of(model, method=method, microbatch_tokens="auto")
        sizes.append(memory.plan(config, 0.82 / (1 - GAPS)).microbatch_tokens)
    assert 0 < 1.5 * sizes[1] < sizes[0] < 16384, sizes


SIZES = st.integers(1, 64)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
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


def test_a_gb_is_the_same_in_options_plan_and_messages(memory: RunMemory, model: Path) -> None:
    """2³⁰ bytes: of `cache_gb`, of the GPU's size and limit, in the table's numbers and in other messages."""
    config = config_of(model, prompts_per_step=16, model={"cache_gb": 2e-5})
    assert parts(memory, config)[CACHE] == int(2e-5 * 2**30)
    needed = memory.fixed(config).fixed_bytes / 2**30
    check_limit(config, needed, "the GPU")
    assert gpu_gigabytes(config_of(model, model={"memory_gb": 3.5})) == 3.5
    assert memory_text(3.25 * 2**30) == "3.2 GB"


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
