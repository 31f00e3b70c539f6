"""Opposites at once: the rows stay as they are, none answers itself, the splits share no word; the checker."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from vigneron.data import opposites
from vigneron.data.tasks import load_task
from vigneron.rewards.checkers import in_order_reward
from vigneron.text import words

DIGEST = "c7fb9e14c8defa7dc137b0439c53712e1e86ff65065abf5f013263c5bb7a0ab1"
FOLDER = Path(opposites.__file__).parent / "task_files"
ANTONYMS = [json.loads(line) for line in (FOLDER / "antonyms.jsonl").read_text(encoding="utf-8").splitlines()]
ROWS = opposites.generate(ANTONYMS)


def test_the_rows_are_the_same_on_every_machine() -> None:
    assert hashlib.sha256(json.dumps(ROWS).encode()).hexdigest() == DIGEST


def test_every_word_is_answered_in_its_place_and_as_among_the_antonyms() -> None:
    known = {(row["word"], row["answer"], row["split"]) for row in ANTONYMS}
    for row in ROWS:
        asked, answers = row["words"].split(", "), row["answer"].split(", ")
        assert len(asked) == len(answers) == row["level"]
        assert {(one, other, row["split"]) for one, other in zip(asked, answers, strict=True)} <= known, row


def test_no_word_occurs_twice_in_a_prompt_and_its_answer() -> None:
    for row in ROWS:
        prompt = load_task(f"opposites-{row['level']}").child_prompt.format(**row)
        assert max(Counter(words(f"{prompt} {row['answer']}")).values()) == 1, row


def test_no_word_of_a_split_occurs_in_another() -> None:
    seen = {
        split: {word for row in ROWS if row["split"] == split for word in words(f"{row['words']} {row['answer']}")}
        for split in ("train", "tuning", "held_out")
    }
    assert not seen["train"] & seen["tuning"]
    assert not seen["held_out"] & (seen["train"] | seen["tuning"])


def test_every_level_has_the_same_sizes_and_no_row_twice() -> None:
    sizes = Counter((row["level"], row["split"]) for row in ROWS)
    assert sizes == {
        (level, split): size
        for level in opposites.LEVELS
        for split, size in (("train", 235), ("tuning", 87), ("held_out", 126))
    }
    assert len({tuple(sorted(row["words"].split(", "))) for row in ROWS}) == len(ROWS)


def test_the_words_of_a_level_occur_about_equally_often() -> None:
    for level in (2, 4):
        times = Counter(
            word for row in ROWS if row["level"] == level and row["split"] == "train" for word in words(row["words"])
        )
        assert len(times) == 235
        assert level - 1 <= min(times.values()) <= max(times.values()) <= level + 1


def test_a_task_of_one_level_has_its_rows_and_a_prompt_with_examples_of_it() -> None:
    rows = load_task("opposites-2").rows("held_out")
    assert {row["level"] for row in rows} == {2}
    shown = "The opposite of each word:\nhot, big -> cold, small\nrich, wet -> poor, dry"
    assert rows[0]["prompt"] == f"{shown}\n{rows[0]['words']} ->"
    assert len(load_task("opposites").rows("held_out")) == 3 * len(rows)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        (" small, late\n", 1),
        ("small late", 1),
        ("Small and late.", 1),
        ("late, small", 0),
        ("small", 0),
        ("small, late, new", 0),
        ("small, late\nbig, early -> small", 0),
        ("", 0),
    ],
)
def test_the_checker_wants_the_whole_answer_in_order(completion: str, right: int) -> None:
    assert in_order_reward([""], [completion], answer=["small, late"]) == [right]


def test_a_missing_answer_has_no_verdict() -> None:
    assert in_order_reward(["", ""], ["small", "small"], answer=[None, "small"]) == [None, 1]
