"""Runs with an environment: every method that samples trains on conversations, and a stopped run goes on as it was."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import fault_runs, grape_runs
from support.labelling import write_rows
from support.learning import Learned, UntilLearned
from support.resuming import TrainedOnce, check_third_arm, lose_nothing, lose_optimizers
from support.talking import conversing, talking_folder
from support.tiny_runs import final_state, held_out_of, tiny_config
from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import config_yaml

METHODS: dict[str, dict[str, Any]] = {
    "ppo": {"method": {"name": "ppo", "advantage": "gae"}, "optimizer": {"actor_lr": 1e-3, "critic_lr": 1e-2}},
    "rejection": {"method": {"name": "rejection_sampling"}},
    "trpo": {"method": {"name": "trpo"}, "optimizer": {"critic_lr": 1e-2}},
    "actor_critic": {"method": {"name": "actor_critic"}, "optimizer": {"actor_lr": 1e-3, "critic_lr": 1e-2}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking_folder(tmp_path_factory.mktemp("talking"))


def config_of(folder: Path, place: Path, **changes: Any) -> Any:
    rows = [{"prompt": [{"role": "user", "content": text}], "wanted": 1 + n % 3} for n, text in enumerate("abcdefgh")]
    data = write_rows(place / "rows.jsonl", rows)
    write_rows(held_out_of(data), [{"prompt": [{"role": "user", "content": text}], "wanted": 2} for text in "xyz"])
    return tiny_config(folder, data, **conversing(folder, **changes))


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_update_trains_on_conversations(name: str, folder: Path, tmp_path: Path) -> None:
    """GRPO's has tests of its own below; REINFORCE's is actor_critic's."""
    run = api.train(config_of(folder, tmp_path, **METHODS[name], steps=2, eval_every=2), runs=tmp_path / "runs")
    (last,) = [record for record in records(run.folder) if record.get("step") == 2]
    assert 1 <= last["turns/mean"] <= 3
    assert "eval/reward" in last
    assert last["turns/reward/1"] >= 0


@pytest.mark.slow
def test_grape_trains_on_conversations(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under other prompts too: what was sampled, and no reply, is trained behind the bare question."""
    (tmp_path / "grape_functions.py").write_text(
        grape_runs.FUNCTIONS.replace("for text in", "for text in map(str,").replace("completions]", "completions)]")
    )
    monkeypatch.syspath_prepend(tmp_path)
    rubric = grape_runs.write_rubric(tmp_path, grape_runs.VOWELS, generate="Speak. {prompt}")
    changes = {"method": {"name": "grape", "kl": {"coefficient": 0.0}}, "reward": {"kind": "rubric", "file": rubric}}
    run = api.train(config_of(folder, tmp_path, **changes, steps=3, eval_every=0), runs=tmp_path / "runs")
    last = records(run.folder)[-1]
    assert last["turns/mean"] >= 1
    assert last["origin/fresh"] > 0


@pytest.mark.slow
def test_it_learns_what_the_environment_pays_for(folder: Path, tmp_path: Path) -> None:
    """Turns that end with a small letter: half of the letters at first."""
    changes = {"steps": 40, "prompts_per_step": 8, "group_size": 8, "eval_every": 0, "optimizer": {"actor_lr": 1e-2}}
    config = config_of(folder, tmp_path, method={"name": "grpo"}, **changes)
    with pytest.raises(Learned):
        api.train(config, runs=tmp_path / "runs", view=UntilLearned(0.2, "turns/reward/1", over_start=True))


@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_nothing, lose_optimizers])
def test_three_arms(lose: Any, folder: Path, tmp_path: Path, trained_once: TrainedOnce) -> None:
    changes = METHODS["ppo"] | {
        "environment": {"class": "support.talking:AsyncCounting"},
        "eval_every": 0,
        "steps": 4,
        "save_every": 2,
    }
    whole = trained_once("ppo", lambda place: config_of(folder, place, **changes))
    check_third_arm(whole, tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Killing", "AsyncKilling", "KillingLetters"])
def test_killed_between_a_call_and_its_answer_the_call_is_made_again(name: str, folder: Path, tmp_path: Path) -> None:
    """In an environment, in one whose other replies are under way, and in a game."""
    environment = {"class": f"support.talking:{name}"} | ({"kind": "game"} if name == "KillingLetters" else {})
    changes = {"environment": environment, "eval_every": 0, "steps": 4, "save_every": 1}
    config = config_of(folder, tmp_path, method={"name": "grpo"}, **changes)
    marker = tmp_path / "marker"
    data = Path(config.data.train)
    rows = [json.loads(line) | {"marker": str(marker), "topic": "x"} for line in data.read_text().splitlines()]
    write_rows(data, rows)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config_yaml(config))
    code = fault_runs.exit_code(fault_runs.trained, str(recipe), str(tmp_path / "runs"), "killed")
    assert code == -signal.SIGKILL
    assert marker.exists()
    resumed = api.resume(tmp_path / "runs" / "killed")
    whole = api.train(config, name="whole", runs=tmp_path / "runs")
    assert len(records(whole.folder)) > 0
    assert final_state(resumed.folder) == final_state(whole.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": {"class": "wordle"}}, "should have the form module:function"),
        ({"environment": {"max_turns": 0}}, "greater than 0"),
        ({"reward": {"kind": "process", "model": "x"}}, "reads one answer, not a conversation"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        config_of(folder, tmp_path, **{"method": {"name": "grpo"}, **changes})


def test_the_reward_needs_an_environment(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs an `environment` section"):
        tiny_config(folder, tmp_path / "x.jsonl", method={"name": "grpo"}, reward={"kind": "environment"})
