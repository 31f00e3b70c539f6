"""Warnings on figures made by hand: what each of them needs, what keeps it silent, and that it is said once."""

import json
from pathlib import Path
from typing import Any

import pytest

from vigneron.run_store.archive import unpacked
from vigneron.training.alerts import CHECKS, FIRST, HISTORY_LENGTH, LAST, History, warnings_of

LOGS = Path(__file__).parent.parent.parent / "docs" / "results" / "logs"
HEALTHY = {
    "reward": 0.5,
    "reward_missing": 0,
    "frac_reward_zero_std": 0.25,
    "entropy": 1.5,
    "kl": 0.1,
    "completions/mean_length": 40.0,
    "completions/clipped_ratio": 0.1,
    "reward/kindness/tone/failed": 0,
}


def steps(count: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """Healthy steps; a change is a value, or one for each step."""
    made = []
    for number in range(count):
        of_step = {key: value[number] if isinstance(value, list) else value for key, value in changes.items()}
        made.append({"step": number + 1, **HEALTHY, **of_step})
    return made


def late(value: float, before: float, last: int = LAST, count: int = 12) -> list[float]:
    return [before] * (count - last) + [value] * last


BROKEN: dict[str, dict[str, Any]] = {
    "flat groups": {"frac_reward_zero_std": late(0.8, 0.2)},
    "entropy": {"entropy": late(0.1, 1.5)},
    "KL": {"kl": late(4.0, 1.0)},
    "truncation": {"completions/clipped_ratio": late(0.9, 0.1)},
    "missing rewards": {"reward_missing": late(2, 0, last=1)},
    "judge": {"reward/kindness/tone/failed": late(1, 0, last=3)},
}


def test_a_healthy_run_says_nothing() -> None:
    assert warnings_of(steps()) == {}
    assert warnings_of([]) == {}
    assert warnings_of([{"step": 0, "eval/accuracy": 0.5}]) == {}


@pytest.mark.parametrize("about", CHECKS)
def test_each_is_said_when_its_figure_breaks(about: str) -> None:
    found = warnings_of(steps(**BROKEN[about]))
    assert list(found) == [about]
    assert "\n" not in found[about]


@pytest.mark.parametrize("about", ["flat groups", "entropy", "truncation", "judge"])
def test_one_step_less_is_a_spike(about: str) -> None:
    (key, values), *_ = BROKEN[about].items()
    spike = [*values[1:], values[0]]
    assert warnings_of(steps(**{key: spike})) == {}, "it is well again"
    shorter = [values[0], *values[:-1]]
    assert warnings_of(steps(**{key: shorter})) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"frac_reward_zero_std": 0.7},
        {"entropy": late(0.2, 1.5)},  # a seventh of the start
        {"entropy": 0.01},  # it started there
        {"kl": late(2.5, 1.0)},
        {"completions/clipped_ratio": 0.4},
        {"completions/clipped_ratio": 1.0, "completions/mean_length": 4.0},  # a word is wanted
        {"reward/kindness/tone/failed": [1, 0] * 6},
        {"kl": late(float("nan"), 1.0)},
    ],
)
def test_what_is_not_yet_wrong_is_not_said(changes: dict[str, Any]) -> None:
    assert warnings_of(steps(**changes)) == {}


def test_a_method_without_the_figure_is_not_warned_of_it() -> None:
    demonstrations = [
        {"step": n, "loss/nll": 1.0, "completions/clipped_ratio": 0.9, "completions/mean_length": 40}
        for n in range(1, 13)
    ]
    assert warnings_of(demonstrations) == {}


def test_truncation_names_its_remedies() -> None:
    line = warnings_of(steps(**BROKEN["truncation"]))["truncation"]
    assert all(key in line for key in ("max_new_tokens", '`sampling.stop` to a string that ends them, such as ["\\n"]'))
    assert "sampling.mask_truncated" in line


def test_what_failed_is_named() -> None:
    changes = {f"reward/kindness/{item}/failed": 1 for item in "abcde"}
    assert "(kindness/a, kindness/b, kindness/c and 2 more)" in warnings_of(steps(**changes))["judge"]


@pytest.mark.parametrize("about", CHECKS)
def test_a_long_run_is_judged_by_its_first_and_last_steps(about: str) -> None:
    """Kept as it goes, or read again after a resume: the same."""
    (key, values), *_ = BROKEN[about].items()
    records = steps(300, **{key: [values[0]] * 288 + values})
    history = History(records)
    assert list(history.warnings()) == [about]
    assert len(history._kept) == HISTORY_LENGTH
    assert history.warnings() == warnings_of([*records[:FIRST], *records[-LAST:]])


def said_in(folder: Path) -> set[str]:
    said: set[str] = set()
    history = History()
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        history.add(json.loads(line))
        said |= set(history.warnings())
    return said


@pytest.mark.slow
def test_the_kept_studies_bear_the_thresholds_out() -> None:
    """Of every method's study nothing is warned; of the children that fell to random words their KL."""
    with unpacked(LOGS / "methods-study.tar.xz") as study:
        said = {folder.name: said_in(folder) for folder in study.iterdir()}
    assert len(said) == 20
    assert {name: about for name, about in said.items() if about} == {}
    with unpacked(LOGS / "pgsrm-study.tar.xz") as study:
        said = {folder.name: said_in(folder) for folder in study.iterdir()}
    for task, seed in (("antonyms", 0), ("categories", 0), ("colors", 1)):
        assert "KL" in said[f"pgsrm-{task}-paper-seed-{seed}"], task
    assert {"KL", "truncation"} <= said["pgsrm-copying-seed-0"], "it no longer came to an end"
    for name, about in said.items():
        of_the_paper = name.startswith("pgsrm-") and ("-paper" in name or "-binary" in name)
        if not of_the_paper and name != "pgsrm-copying-seed-0":
            assert not about & {"KL", "truncation", "missing rewards", "judge"}, name
