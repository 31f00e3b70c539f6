"""The verdict where people meet it: in the terminal, the lists, the report and the notices of real, tiny runs."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import Answer, vigneron
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.notices import kept_notices
from vigneron.run_store.outcome import evaluations_of, stored_outcome
from vigneron.run_store.samples import Sample, SampleStore
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


@pytest.mark.slow
def test_the_fall_is_warned_of_once_and_at_its_step(hacked: tuple[Path, Answer]) -> None:
    run, answer = hacked
    (warned,) = [notice for notice in kept_notices(run) if notice.about == "held out"]
    assert warned.kind == "warning"
    chance = f"more than the chance differences of 20 rows in {warned.step // 2 + 1} evaluations"
    assert f"to 0.000 at step {warned.step}, {chance}, while" in warned.text
    assert warned.step < 14
    assert answer.out.count("while the training reward rose") == 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_fall_without_a_rising_reward_or_beyond_no_noise_is_no_warning(hacked: tuple[Path, Answer]) -> None:
    run, _ = hacked
    config, evaluations = status_of(run).config, evaluations_of(run)
    assert History(records_of(run)).evaluations == [
        {name: value for name, value in record.items() if name == "step" or name.startswith("eval/")}
        for record in evaluations
    ]
    assert falling_held_out(run, config, evaluations, (0.1, 0.5)) is not None
    assert falling_held_out(run, config, evaluations, None) is None
    by_reward = {**config, "keep_best": "eval/reward"}
    assert falling_held_out(run, by_reward, evaluations, (0.1, 0.5)) is None  # it rose


def test_the_best_of_many_evaluations_is_partly_luck(tmp_path: Path) -> None:
    """100 rows, 30 of which are answered by a coin: nothing changes, and none of 40 evaluations is called a fall."""
    coin, store, evaluations = random.Random(3), SampleStore(tmp_path), []
    for step in range(40):
        right = [number < 40 or (number < 70 and coin.random() < 0.5) for number in range(100)]
        store.add([Sample(step, "eval", n, f"q{n}", "t", "a", None, None, ok, False, {}) for n, ok in enumerate(right)])
        evaluations.append({"step": step, "eval/accuracy": sum(right) / 100})
    store.close()
    scored = {one["step"]: one["eval/accuracy"] for one in evaluations}
    assert max(scored.values()) - min(scored.values()) > 0.12
    config = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}}
    for last in range(2, 41):
        assert falling_held_out(tmp_path, config, evaluations[:last], (0.1, 0.5)) is None
    fallen = [Sample(40, "eval", n, f"q{n}", "t", "a", None, None, n < 20, False, {}) for n in range(100)]
    store = SampleStore(tmp_path)
    store.add(fallen)
    store.close()
    text = falling_held_out(tmp_path, config, [*evaluations, {"step": 40, "eval/accuracy": 0.2}], (0.1, 0.5))
    assert text is not None
    assert "to 0.200 at step 40, more than the chance differences of 100 rows in 41 evaluations" in text


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
