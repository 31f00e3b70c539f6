"""The verdict where people meet it: in the terminal, the lists, the report and the notices of real, tiny runs."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import Answer, vigneron
from vigneron.run_store.notices import kept_notices
from vigneron.run_store.outcome import stored_outcome
from vigneron.run_store.status import status_of
from vigneron.training.alerts import History, falling_held_out

REWARD = """
def vowels(prompts, completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / 4 for text in completions]
"""


@pytest.fixture(scope="module")
def hacked(tmp_path_factory: pytest.TempPathFactory, obliging_folder: Path) -> tuple[Path, Answer]:
    """A model that answers `xy`, which is right, trained by a reward that pays for vowels."""
    place = tmp_path_factory.mktemp("hacked")
    (place / "vowel_reward.py").write_text(REWARD)
    for name, count in (("train", 8), ("held", 20)):
        rows = [{"prompt": f"{name} {number}: ", "answer": "xy"} for number in range(count)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe: dict[str, Any] = {
        "method": {"name": "grpo", "kl": {"coefficient": 0}},
        "model": {"name": str(obliging_folder), "device": "cpu"},
        "data": {"train": str(place / "train.jsonl"), "held_out": str(place / "held.jsonl")},
        "reward": {"kind": "python", "function": "vowel_reward:vowels"},
        "optimizer": {"actor_lr": 0.1},
        "steps": 14,
        "prompts_per_step": 8,
        "group_size": 8,
        "max_new_tokens": 4,
        "eval_every": 2,
        "save_every": 0,
    }
    (place / "hack.yaml").write_text(yaml.safe_dump(recipe))
    sys.path.insert(0, str(place))
    try:
        answer = vigneron("train", place / "hack.yaml", "--name", "run", "--runs", place)
    finally:
        sys.path.remove(str(place))
    assert answer.code == 0, answer.err
    return place / "run", answer


@pytest.mark.slow
def test_the_terminal_begins_and_ends_with_the_held_out_rows(hacked: tuple[Path, Answer]) -> None:
    run, answer = hacked
    lines = answer.out.splitlines()
    assert "step 0/14  held-out accuracy 1.000  held-out reward 0.000  before training" in lines
    result = lines.index(
        "result  worse: held-out accuracy fell from 1.000 to 0.000 (95 % interval of the change −1.000 to −0.749, 20 "
        "held-out rows)"
    )
    assert lines[result + 1] == "best    no step is better than the model before training (held-out accuracy 1.000)"
    assert lines[-1] == f"try     vigneron train {run}/config.yaml optimizer.actor_lr=0.033"


def test_the_fall_is_warned_of_once_and_at_its_step(hacked: tuple[Path, Answer]) -> None:
    run, answer = hacked
    (warned,) = [notice for notice in kept_notices(run) if notice.about == "held out"]
    assert warned.kind == "warning"
    assert f"to 0.000 at step {warned.step} (95 % interval of the change −1.000 to −0.749, 20 rows)" in warned.text
    assert warned.step < 14
    assert answer.out.count("while the training reward rose") == 1


def test_lists_and_the_report_have_the_verdict(hacked: tuple[Path, Answer]) -> None:
    run, _ = hacked
    outcome = stored_outcome(status_of(run).outcome)
    assert outcome is not None
    assert outcome.verdict == "worse"
    assert re.search(r"run +finished +14/14 +1\.000 → 0\.000 worse ", vigneron("runs", run.parent).out)
    assert json.loads(vigneron("runs", run.parent, "--json").out)[0]["outcome"]["verdict"] == "worse"
    shown = vigneron("show", run).out
    assert "  held out          worse: held-out accuracy fell from 1.000 to 0.000" in shown
    assert "train further" not in shown
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.index("Worse: held-out accuracy fell") < page.index("<svg") < page.index("<table")
    assert "0 got better and 20 worse" in " ".join(page.split())
    assert page.count('<tr class="worse">') == 20
    assert re.search(r"Written \d{4}-\d\d-\d\d \d\d:\d\d UTC by Vigneron", page)
    assert re.search(r"Run began .* UTC, ended .* UTC, trained by Vigneron", page)


def test_a_fall_without_a_rising_reward_or_beyond_no_noise_is_no_warning(hacked: tuple[Path, Answer]) -> None:
    run, _ = hacked
    config = status_of(run).config
    assert falling_held_out(run, config, (0.1, 0.5)) is not None
    assert falling_held_out(run, config, None) is None
    assert falling_held_out(run, {**config, "keep_best": "eval/reward"}, (0.1, 0.5)) is None  # it rose


@pytest.mark.parametrize(
    ("rewards", "risen"),
    [
        ([0.1, 0.3, 0.2, 0.5, 0.5], (0.2, 0.5)),
        ([0.1, 0.6, 0.2, 0.5, 0.5], None),  # the first steps were as high
        ([0.1, 0.1, 0.1, 0.9], None),  # one step
        ([], None),
    ],
)
def test_when_a_reward_has_risen(rewards: list[float], risen: tuple[float, float] | None) -> None:
    found = History({"step": step, "reward": reward} for step, reward in enumerate(rewards, start=1)).risen_rewards()
    assert found == (None if risen is None else pytest.approx(risen))
