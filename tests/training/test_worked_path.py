"""The worked path of docs/guides/sft-to-rl.md with a tiny model: two runs, and every method from there."""

from pathlib import Path

import pytest

from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.run_store.folder import RunFolder
from vigneron.training.setup.resolve import resolved

SMALL = ("model.device=cpu", "steps=2", "eval_every=2")
METHODS_AFTER = ("grpo", "ppo", "reinforce", "trpo", "trust", "dpo", "rejection")


@pytest.fixture(scope="module")
def started(obliging_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the fine-tuned child and the reward model."""
    runs = tmp_path_factory.mktemp("worked") / "runs"
    for name in ("sft-instructions", "reward-instructions"):
        config = load_config(name, [*SMALL, f"model.name={obliging_folder}", "prompts_per_step=4"])
        api.train(config, name=name, runs=runs)
    return runs


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", METHODS_AFTER)
def test_every_method_goes_on_from_the_two_runs(name: str, started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started.parent)
    config = load_config(f"{name}-instructions", SMALL)
    sizes = {"prompts_per_step": max(2, 8 // config.group_size), "group_size": min(config.group_size, 4)}
    config = config.model_copy(update=sizes)
    trained = api.train(config, runs=started)
    last = RunFolder(trained.folder).metrics()[-1]
    assert {"reward", "entropy", "eval/reward"} <= set(last)
    assert trained.config.model.name == str(started.resolve() / "sft-instructions" / "checkpoints" / "step-2")


@pytest.mark.slow
def test_the_runs_are_found_where_runs_are_kept_and_missed_by_name(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("grpo-instructions", SMALL)
    with pytest.raises(
        UserError, match="model: there is no run 'runs/sft-instructions': run `vigneron train sft-instructions --name"
    ):
        resolved(config)
    monkeypatch.setenv("VIGNERON_RUNS", str(started))
    assert resolved(config).model.name.endswith("sft-instructions/checkpoints/step-2")


def test_all_of_them_sample_as_much() -> None:
    samples = {
        name: (c := load_config(f"{name}-instructions")).steps * c.prompts_per_step * c.group_size
        for name in METHODS_AFTER
    }
    assert set(samples.values()) == {6400}
