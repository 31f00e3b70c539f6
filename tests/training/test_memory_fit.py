"""Changes to a run's config that make it fit into a GPU: what each saves, and suggestions that reach their target."""

from pathlib import Path

import pytest

from support.memory_plans import config_of, weightless_llama
from vigneron.commands.memory_lines import _takes, fitting_lines
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.policy.model_size import ModelSize, Weight
from vigneron.training.memory_fit import CHANGES, USABLE, Change, Fitting, changed, check_host_limit, check_limit
from vigneron.training.memory_plan import RunMemory
from vigneron.values import GB


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weightless_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def memory(model: Path) -> RunMemory:
    found = RunMemory.of(config_of(model), 20)
    assert found is not None
    return found


@pytest.mark.slow
def test_every_change_saves_where_it_is_meant_to(memory: RunMemory, model: Path) -> None:
    config = config_of(model, prompts_per_step=16)
    before = memory.plan(config)
    for change in (change for change in CHANGES if change.text != "4bit"):
        assert memory.plan(changed(config, [change])).peak_bytes < before.peak_bytes, change


def test_a_change_of_a_nested_key(model: Path) -> None:
    config = changed(config_of(model), [Change("method.kl.estimator", "k3", "k3")])
    assert config.method.kl.estimator == "k3"
    assert config.method.kl.coefficient == 0.04


class TestFitting:
    """On a model of billions of weights, counted and not built."""

    @pytest.fixture(scope="class")
    def large(self, model: Path, memory: RunMemory) -> RunMemory:
        found = RunMemory.of(config_of(model), 20)
        assert found is not None
        found._passes = memory._passes  # of the same shapes: counted once
        whole = tuple(
            Weight(2**20, trained=True, castable=True, matrix=True, quantised=True, linear=True) for _ in range(2048)
        )
        base = tuple(
            Weight(2**20, trained=False, castable=True, matrix=True, quantised=True, linear=True) for _ in range(2048)
        )
        for lora in (None, "any"):
            weights = whole if lora is None else (*base, Weight(2**20, trained=True, adapter=True))
            found._sizes[lora, False] = ModelSize(weights, 2**15, 16, 260)
        found.size = lambda lora, scorer: found._sizes[lora and "any", scorer]  # type: ignore[method-assign]
        return found

    @pytest.mark.parametrize("target", [*(pytest.param(size, marks=pytest.mark.slow) for size in (3, 8, 16)), 48])
    def test_the_suggested_changes_reach_the_target(self, large: RunMemory, model: Path, target: int) -> None:
        config = config_of(model)
        found = Fitting(large, config).fit(target)
        assert found is not None
        usable = USABLE * target
        assert large.plan(changed(config, found.changes), usable).least_bytes <= usable * GB
        for left_out in found.changes:  # none of them is idle
            fewer = [change for change in found.changes if change is not left_out]
            keys = {change.key for change in fewer}
            if left_out.key != "model.lora" or "model.weights" not in keys:
                assert large.plan(changed(config, fewer), usable).least_bytes > usable * GB

    def lines(self, large: RunMemory, config: Config, size: float) -> list[str]:
        found = Fitting(large, config).fit(size)
        assert found is not None
        return [str(change) for change in found.changes]

    def test_changes_that_leave_the_training_as_it_is_come_first(self, large: RunMemory, model: Path) -> None:
        """2³¹ weights: 8 of weights, 8 of gradients, 16 of moments, 4 of the reference, 4 of the engine's matrices and
        0.8 GB of the context; 8 and 8 of CUDA graphs, which are left out where passes are limited."""
        config = config_of(model)
        assert self.lines(large, config, 80) == []
        # 8 + 8 + 4 + 0.8, and the reference while it scores: 8 + 4 + 4 + 0.8.
        assert self.lines(large, config, 24) == ["model.offload_reference=true", "optimizer.offload=true"]
        # 4 + 4 + 0.8 in bfloat16.
        small = ["model.offload_reference=true", "optimizer.offload=true", "model.weights=bfloat16"]
        assert self.lines(large, config, 10) == small
        assert self.lines(large, config, 8) == ["model.lora={}"]

    def test_bfloat16_weights_come_later_at_a_small_learning_rate(self, large: RunMemory, model: Path) -> None:
        """Beside 8-bit moments: 8 + 8 + 4 GB fit without the noise of stochastic rounding, 4 + 4 + 4 with it."""
        search = Fitting(large, config_of(model, optimizer={"actor_lr": 1e-7}))
        names = [[str(change) for change in some] for some in search._sets]
        bfloat16, others = ["model.weights=bfloat16"], ["optimizer.kind=adamw_8bit", "method.kl.estimator=k3"]
        assert names.index(others) < names.index(bfloat16)
        usual = [[str(change) for change in some] for some in Fitting(large, config_of(model))._sets]
        assert usual.index(bfloat16) < usual.index([*others, "model.weights=bfloat16"])
        every = [change for change in CHANGES if not change.trains]
        assert names.index([str(change) for change in every]) < names.index(["optimizer.kind=adamw_8bit"])

    @pytest.mark.slow
    def test_a_suggestion_leaves_room_for_passes(self, large: RunMemory, model: Path) -> None:
        """Offloaded moments alone would leave room for one sample at a time; the place of the reference has more.
        What changes the training is not suggested for that."""
        config = config_of(model, microbatch_tokens="auto")
        offload = [change for change in CHANGES if change.key == "optimizer.offload"]
        fixed = large.fixed(changed(config, offload)).fixed_bytes
        size = (fixed + 2**20) / USABLE / GB
        assert large.plan(changed(config, offload), USABLE * size).microbatch_tokens < 1024
        found = Fitting(large, config).fit(size)
        assert found is not None
        assert [str(change) for change in found.changes] == ["model.offload_reference=true", "optimizer.offload=true"]
        assert found.plan.microbatch_tokens >= 1024

    def test_larger_passes_are_offered_for_what_changes_the_training(self, large: RunMemory, model: Path) -> None:
        """All that leaves it as it is gives room for one sample at a time."""
        every = [change for change in CHANGES if not change.trains]
        config = changed(config_of(model, microbatch_tokens="auto"), every)
        search = Fitting(large, config)
        size = (large.fixed(config).fixed_bytes + 2**20) / USABLE / GB
        found = search.fit(size)
        assert found is not None
        roomier = search.roomier(size, found)
        assert roomier is not None
        assert found.changes == ()
        assert found.plan.microbatch_tokens < 1024 <= roomier.plan.microbatch_tokens
        assert [str(change) for change in roomier.changes] == ["model.weights=bfloat16"]

    def test_larger_passes_are_offered_beside_an_adapter(self, large: RunMemory, model: Path) -> None:
        """A base of 4 GB leaves room for one sample at a time, one in 4 bits for more."""
        config = config_of(model, microbatch_tokens="auto")
        adapted = changed(config, [change for change in CHANGES if change.key == "model.lora"])
        search = Fitting(large, config)
        size = (large.plan(adapted, 24).least_bytes + 2**20) / USABLE / GB
        found = search.fit(size)
        assert found is not None
        assert [str(change) for change in found.changes] == ["model.lora={}"]
        assert found.plan.microbatch_tokens < 1024
        roomier = search.roomier(size, found)
        assert roomier is not None
        assert [str(change) for change in roomier.changes] == ["model.weights=4bit", "model.lora={}"]
        assert roomier.plan.microbatch_tokens >= 1024
        line = f"  or, with larger passes: model.weights=4bit model.lora={{}} ({_takes(roomier.plan)})"
        assert line in list(fitting_lines(large, changed(config, [Change("model.memory_gb", "", size)])))

    def test_a_suggestion_leaves_a_margin(self, large: RunMemory, model: Path) -> None:
        """A GPU that is sold as 24 GB has 23.6, or 22.1 with error correction."""
        config = config_of(model, model={"graphs": False, "offload_reference": True}, optimizer={"offload": True})
        least = large.plan(config, 24).least_bytes / GB
        assert Fitting(large, config).fit(least / USABLE + 0.01).changes == ()  # type: ignore[union-attr]
        close = Fitting(large, config).fit(least / 0.93)
        assert close is None or close.changes
        assert 0.9 <= USABLE <= 22.1 / 24

    def test_a_model_that_nothing_makes_fit(self, large: RunMemory, model: Path) -> None:
        assert Fitting(large, config_of(model)).fit(1) is None

    def test_changes_that_the_config_refuses_are_not_offered(self, large: RunMemory, model: Path) -> None:
        found = Fitting(large, config_of(model, model={"chat": "minted"})).fit(8)
        assert found is None or "model.lora={}" not in map(str, found.changes)

    def test_nothing_is_offloaded_to_a_host_that_cannot_hold_it(self, large: RunMemory, model: Path) -> None:
        config = config_of(model)
        found = Fitting(large, config, host_bytes=4 * GB).fit(24)  # the reference has 4, the moments 16
        assert found is not None
        assert "optimizer.offload=true" not in map(str, found.changes)
        assert found.plan.host_bytes <= 4 * GB

    def test_a_host_that_cannot_hold_what_is_offloaded_is_told(self, large: RunMemory, model: Path) -> None:
        config = config_of(model, model={"offload_reference": True}, optimizer={"offload": True})
        check_host_limit(config, large, 20 * GB)
        with pytest.raises(UserError) as error:
            check_host_limit(config, large, 19.9 * GB)
        line = str(error.value)
        assert line.startswith(
            "optimizer.offload and model.offload_reference: 20.0 GB of pinned host memory are needed"
        )
        assert "and 19.9 GB are free" in line
        assert "\n" not in line
        check_host_limit(config_of(model), large, 0)

    def test_lines_of_suggestions_say_what_the_host_must_hold(self, large: RunMemory, model: Path) -> None:
        line = next(line for line in fitting_lines(large, config_of(model)) if line.startswith("to fit 24 GB"))
        assert "optimizer.offload=true" in line
        assert line.endswith(", and 20.0 GB of pinned host memory)")


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


def test_no_adapter_is_offered_for_a_reward_model(model: Path) -> None:
    given = {"method": {"name": "reward_model"}, "data": {"train": "rows.jsonl"}, "reward": None}
    config = config_of(model, **given, group_size=1, max_new_tokens=16)
    memory = RunMemory.of(config, 20)
    assert memory is not None
    assert Fitting(memory, config).fit(0.5) is None
