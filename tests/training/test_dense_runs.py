"""Runs by dense rewards on a tiny model: an annealed one remembers over a resume, others need no memory."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import fault_runs
from support.resuming import TrainedOnce, check_third_arm, lose_nothing
from support.tiny_runs import final_state, tiny_config, write_data
from vigneron import api
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder

HERE = __name__


def now_and_then(completions: list[str], **columns: Any) -> list[float]:
    """A check that a random text passes about once in 8."""
    return [float(sum(map(ord, text)) % 8 == 0) for text in completions]


def by_letters(completions: list[str], **columns: Any) -> list[float]:
    return [sum(map(ord, text)) % 97 / 97 for text in completions]


CHECK, DENSE = ({"kind": "python", "function": f"{HERE}:{name}"} for name in ("now_and_then", "by_letters"))
REWARDS: dict[str, dict[str, Any]] = {
    "annealed": {"kind": "combined", "combine": "annealed", "rewards": [CHECK, DENSE]},
    "tie_break": {"kind": "combined", "combine": "tie_break", "rewards": [CHECK, DENSE]},
    "contrastive": {"kind": "semantic", "embedder": "lexical", "form": "contrastive", "negatives": 3},
    "probability": {"kind": "probability", "answer_after": "a", "debias": False},
    "token_f1": {"kind": "token_f1"},
}


def config_in(place: Path, model: Path, reward: dict[str, Any], **changes: Any) -> Config:
    keys: dict[str, Any] = {
        "method": {"name": "grpo"},
        "optimizer": {"actor_lr": 1e-2, "schedule": "cosine"},
        "reward": reward,
        "steps": 8,
        "prompts_per_step": 4,
        "group_size": 4,
        "eval_every": 3,
        "save_every": 4,
        **changes,
    }
    return tiny_config(model, write_data(place), **keys)


KILLED = ("annealed", "probability")


def lose_hits(run: Any) -> None:
    run.reward.function._hits.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lose"), [("annealed", lose_hits), ("contrastive", lose_nothing)])
def test_a_resumed_run_is_the_same(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str, lose: Any
) -> None:
    check_third_arm(trained_once(name, lambda place: config_in(place, tiny_folder, REWARDS[name])), tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_and_resumed_run_is_the_same(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str
) -> None:
    whole = trained_once(name, lambda place: config_in(place, tiny_folder, REWARDS[name]))
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((whole / "config.yaml").read_text())
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 6)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)


@pytest.mark.slow
def test_prompts_go_over_to_the_check_and_stay(tmp_path: Path, tiny_folder: Path) -> None:
    """The share of samples that the check rewards grows, the memory is in the checkpoint, and held-out completions get
    the check alone, whose values are 0 and 1."""
    config = config_in(tmp_path, tiny_folder, REWARDS["annealed"], steps=6, eval_every=2, save_every=6)
    trained = api.train(config, name="run", runs=tmp_path)
    folder = RunFolder.open(trained.folder)
    records = folder.metrics()
    shares = [record["reward/annealed"] for record in records if record["step"]]
    assert shares[0] < shares[-1]
    evaluated = [record["eval/reward"] for record in records if "eval/reward" in record]
    assert all(value * 10 == round(value * 10) for value in evaluated), "ten held-out prompts, each 0 or 1"
    scalars = json.loads((trained.folder / "checkpoints" / "step-6" / "state" / "scalars.json").read_text())
    assert 0 < len(scalars["reward"]["hits"]) <= 10
    assert trained.evaluate()["reward"] == pytest.approx(evaluated[-1])


@pytest.mark.slow
def test_runs_of_every_reward_can_be_evaluated_again(tmp_path: Path, tiny_folder: Path) -> None:
    for name in ("contrastive", "probability", "tie_break", "token_f1"):
        config = config_in(tmp_path, tiny_folder, REWARDS[name], steps=2, eval_every=2, save_every=2)
        trained = api.train(config, name=name, runs=tmp_path)
        logged = RunFolder.open(trained.folder).metrics()[-1]["eval/reward"]
        assert api.load_run(trained.folder).evaluate()["reward"] == pytest.approx(logged, rel=1e-4)


def test_samples_of_an_annealed_reward_cannot_be_recorded(tmp_path: Path, tiny_folder: Path) -> None:
    config = config_in(tmp_path, tiny_folder, REWARDS["annealed"])
    with pytest.raises(UserError, match="annealed changes during a run"):
        api.record_samples(config, out=tmp_path / "samples.jsonl")
