"""GRPO in the loop with a real, tiny model: it learns, its recipe runs, and a step that teaches nothing is named."""

from pathlib import Path
from typing import Any

import pytest

from support.learning import Learned, UntilLearned
from support.rewards import with_reward
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.methods import build_method
from vigneron.recipe import load_config
from vigneron.report.html import write_report
from vigneron.rewards.apply import ApplyReward
from vigneron.run_store.folder import RunFolder
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run

QUIET: dict[str, Any] = {"eval_every": 0, "save_every": 0}


class Ear:
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def step(self, *_: Any) -> None: ...


def start(tmp_path: Path, model: Path, reward: Any, view: Any, **changes: Any) -> Run:
    options = {"method": {"name": "grpo"}, "optimizer": {"actor_lr": 1e-2}, "group_size": 4, **QUIET, **changes}
    config = tiny_config(model, write_data(tmp_path), **options)
    run = start_run(config, tmp_path, build_method, name="run", view=view)
    run.method = with_reward(run.method, ApplyReward(reward, missing_limit=1.0))
    return run


def share_of_vowels(completions: list[str], **columns: Any) -> list[float]:
    return [sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"kl": {"coefficient": 0.0}},
        {"updates_per_step": 2, "scale_by_std": True, "aggregation": "samples", "kl": {"estimator": "k3"}},
    ],
)
def test_the_policy_learns_what_is_rewarded(tmp_path: Path, tiny_folder: Path, method: dict[str, Any]) -> None:
    options = {"steps": 40, "prompts_per_step": 8, "method": {"name": "grpo", **method}}
    run = start(tmp_path, tiny_folder, share_of_vowels, Silent(), **options)
    with pytest.raises(Learned):
        train(run, until := UntilLearned(0.4))
    run.close()
    assert sum(until.values[:3]) / 3 < 0.1


@pytest.mark.slow
def test_the_recipe_runs_and_is_reported(tmp_path: Path, tiny_folder: Path) -> None:
    config = load_config(
        "grpo-antonyms",
        [f"model.name={tiny_folder}", "model.device=cpu", "steps=2", "prompts_per_step=2", "eval_every=2"],
    )
    trained = api.train(config, name="run", runs=tmp_path)
    last = RunFolder(trained.folder).metrics()[-1]
    names = {"kl", "kl_previous", "entropy", "clip_ratio/region_mean", "logprob_mismatch", "frac_reward_zero_std"}
    assert names <= set(last)
    assert {"loss/policy", "loss/kl", "grad_norm/actor", "kl_coefficient", "eval/exact_match"} <= set(last)
    assert not {"loss/value", "grad_norm/critic"} & set(last)
    assert "eval/frac_reward_zero_std" not in last, "greedy completions have no group"
    assert last["kl_coefficient"] == 0.04
    assert last["logprob_mismatch"] < 1e-4
    assert "critic_lr" not in (trained.folder / "config.yaml").read_text()
    assert write_report([trained.folder]).is_file()


def test_a_step_that_teaches_nothing_is_counted_and_explained_once(tmp_path: Path, tiny_folder: Path) -> None:
    ear = Ear()
    run = start(
        tmp_path,
        tiny_folder,
        lambda completions, **columns: [0.1] * len(completions),
        ear,
        steps=3,
        method={"name": "grpo", "kl": {"coefficient": 0.0}},
    )
    before = len(ear.notices)
    assert not any("no effect" in text or "loss/policy" in text for text in ear.notices)
    train(run, ear)
    run.close()
    (explained,) = ear.notices[before:]
    assert "in no group of this step do two rewards differ" in explained
    for record in run.folder.metrics():
        assert record["frac_reward_zero_std"] == 1.0
        assert record["loss/policy"] == record["grad_norm/actor"] == 0.0


def test_groups_that_differ_are_not_counted_as_alike(tmp_path: Path, tiny_folder: Path) -> None:
    """Four groups of four: in the first two the rewards differ, in the third all but one are missing."""
    rewards = [1.0, 0.0, 0.0, 0.0, None, 1.0, 0.5, 1.0, None, None, 1.0, None, 0.5, 0.5, 0.5, None]
    ear = Ear()
    run = start(tmp_path, tiny_folder, lambda completions, **columns: rewards, ear, steps=1)
    before = len(ear.notices)
    train(run, ear)
    run.close()
    (record,) = run.folder.metrics()
    assert record["frac_reward_zero_std"] == pytest.approx(0.5)
    assert record["reward_missing"] == 5
    assert record["grad_norm/actor"] > 0
    (missing,) = ear.notices[before:]
    assert missing.startswith("5 samples of a step without a reward")
