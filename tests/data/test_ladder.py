"""The ladder's file is its generator's, its sums are right, and its splits share nothing."""

import json
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from vigneron.data import ladder
from vigneron.data.tasks import load_task
from vigneron.rewards.checkers import last_line_reward

FILE = Path(ladder.__file__).parent / "task_files" / "ladder.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_the_file_is_the_generators() -> None:
    assert ladder.generate() == ROWS


def test_more_sums_than_there_are_is_an_error() -> None:
    """Of one term from 1 to 99 there are 99 sums, and half as many rows; of two from 1 to 20 there are 20 · 21 / 2."""
    with pytest.raises(ValueError, match="only 99 sums of 1 terms"):
        ladder.generate(splits={"train": 200})
    with pytest.raises(ValueError, match="only 210 sums of 2 terms"):
        ladder.generate(splits=dict.fromkeys(range(211), 1))  # type: ignore[arg-type]


def test_every_row_adds_up() -> None:
    for row in ROWS:
        terms = [int(term) for term in row["terms"].split(" + ")]
        assert row["level"] == len(terms)
        assert [int(line) for line in row["steps"].splitlines()] == list(accumulate(terms))
        assert row["result"] == row["steps"].splitlines()[-1] == str(sum(terms))


def test_no_sum_occurs_twice() -> None:
    keys = Counter(tuple(sorted(row["terms"].split(" + "))) for row in ROWS)
    assert max(keys.values()) == 1
    assert Counter(row["split"] for row in ROWS) == {"train": 540, "tuning": 90, "held_out": 180}
    assert {row["level"] for row in ROWS if row["split"] == "held_out"} == {1, 2, 3, 4, 5}


def test_the_two_tasks_read_the_same_rows() -> None:
    direct, stepped = load_task("ladder").rows("held_out"), load_task("ladder-steps").rows("held_out")
    assert direct[-1]["prompt"] == direct[-1]["terms"] + " ="
    assert [row["answer"] for row in direct] == [row["steps"].splitlines()[-1] for row in stepped]
    assert [row["answer"] for row in stepped] == [row["steps"] for row in direct]


def test_the_last_line_decides() -> None:
    texts = ["7\n19\n24", "24", "7\n19\n24\n\n", "24\n19", "7\n19\n 24.", "", "7\n19\n24 25"]
    answer = ["7\n19\n24"] * len(texts)
    assert last_line_reward([""] * len(texts), texts, answer=answer) == [1, 1, 1, 0, 1, 0, 0]
    assert last_line_reward([""], ["24"], answer=[None]) == [None]
