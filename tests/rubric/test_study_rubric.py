"""The study's rubric: its shape, that every written answer is perfect by what can be checked, and what earns less.

The checks here are written anew and small: they are what the file means, whatever the graders make of it. The two items
that a model scores are left out.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
import yaml

from vigneron.data.tasks import load_task
from vigneron.rubric.model import DEFAULT_CANARIES, Category, Rubric
from vigneron.text import normalise, words

PATH = resources.files("vigneron") / "rubric" / "examples" / "study.yaml"
RUBRIC = Rubric.model_validate(yaml.safe_load(PATH.read_text(encoding="utf-8")))
TASK = load_task("rubric")
ROWS = [row for split in ("train", "tuning", "held_out") for row in TASK.rows(split)]
BY_A_MODEL = {"judge", "semantic"}

every_category = pytest.mark.parametrize("category", RUBRIC.categories)


def matches(item: Any, response: str, answer: str) -> float:
    found = re.fullmatch(item.pattern, response) if item.expect == "whole" else re.search(item.pattern, response)
    return float((found is not None) == (item.expect != "absent"))


def within(item: Any, response: str, answer: str) -> float:
    assert item.unit == "words"
    length = sum(any(map(str.isalnum, word)) for word in response.split())
    return min(1.0, length / item.at_least, item.at_most / length if length else 0.0)


def is_flat_object(item: Any, response: str, answer: str) -> float:
    assert item.json_schema["additionalProperties"] == {"type": ["string", "integer", "boolean"]}
    try:
        held = json.loads(response)
    except ValueError:
        return 0.0
    fits = isinstance(held, dict) and 1 <= len(held) <= 3 and all(type(v) in (str, int, bool) for v in held.values())
    return 1.0 if fits else item.partial


def alike(item: Any, response: str, answer: str) -> float:
    response, answer = normalise(response), normalise(answer)
    one, other = (list(response), list(answer)) if item.metric == "ratio" else (words(response), words(answer))
    shared = sum((Counter(one) & Counter(other)).values()) if item.metric == "token_f1" else in_order(one, other)
    return 2 * shared / (len(one) + len(other)) if one or other else 0.0


def in_order(one: list[str], other: list[str]) -> int:
    """The longest common subsequence."""
    best = [0] * (len(other) + 1)
    for left in one:
        row = [0]
        for place, right in enumerate(other):
            row.append(best[place] + 1 if left == right else max(best[place + 1], row[-1]))
        best = row
    return best[-1]


CHECKS: dict[str, Callable[[Any, str, str], float]] = {
    "string_check": lambda item, response, answer: float(normalise(response) == normalise(answer)),
    "regex": matches,
    "length": within,
    "json_schema": is_flat_object,
    "text_similarity": alike,
}


def checked(category: str, response: str, answer: str) -> float:
    """Σ ω τ over the items that no model scores."""
    items = [item for item in RUBRIC.categories[category].items if item.flow not in BY_A_MODEL]
    return sum(item.weight * CHECKS[item.flow](item, response, answer) for item in items)


def most(category: str) -> float:
    return sum(item.weight for item in RUBRIC.categories[category].items if item.flow not in BY_A_MODEL)


def test_its_categories_are_those_of_the_data() -> None:
    assert RUBRIC.category_column == "category"
    assert set(RUBRIC.categories) == {row["category"] for row in ROWS}


@every_category
def test_weights_sum_to_one_and_truth_is_more_than_half(category: str) -> None:
    items = RUBRIC.categories[category].items
    assert sum(item.weight for item in items) == pytest.approx(1)
    assert sum(item.weight for item in items if "truth" in item.tags) > 0.5


def test_only_the_explanations_need_a_model() -> None:
    assert {name for name in RUBRIC.categories if most(name) < 0.999} == {"explanations"}
    assert most("explanations") == pytest.approx(0.6)


@every_category
def test_every_written_answer_is_perfect(category: str) -> None:
    rows = [row for row in ROWS if row["category"] == category]
    assert len(rows) == 80
    for row in rows:
        assert checked(category, row["answer"], row["answer"]) == pytest.approx(most(category)), row
        assert checked(category, f" {row['answer']}", row["answer"]) == pytest.approx(most(category)), row


RUST = "Iron rusts because it reacts with oxygen and water."
SCORES = [
    # 0.6 correct, 0.25 only the number, 0.15 short
    ("arithmetic", "15", "15", 1.0),
    ("arithmetic", " 15.", "15", 1.0),
    ("arithmetic", "16", "15", 0.4),
    ("arithmetic", "fifteen", "15", 0.15),
    ("arithmetic", "7 + 8 = 15", "15", 0.15 / 3),
    # 0.6 correct, 0.2 one word, 0.15 short, 0.05 lowercase
    ("antonyms", "cold", "cold", 1.0),
    ("antonyms", "Cold.", "cold", 0.95),
    ("antonyms", "hot", "cold", 0.4),
    ("antonyms", "it is cold", "cold", 0.15 / 3 + 0.05),
    # 0.4 right, 0.3 valid (half of it for other JSON), 0.15 near (of `a": 1`, 5 characters), 0.15 no words around it
    ("json", '{"a": 1}', '{"a": 1}', 1.0),
    ("json", '{\n  "a": 1\n}', '{"a": 1}', 1.0),
    ("json", '{"a": 2}', '{"a": 1}', 0.45 + 0.15 * 4 / 5),
    ("json", '{"a": 1', '{"a": 1}', 0.4 + 0.15),
    ("json", "[1]", '{"a": 1}', 0.15 + 0.15 * 2 * 1 / (1 + 5)),
    ("json", '{"a":1}', '{"a": 1}', 0.45 + 0.15 * 2 * 4 / (4 + 5)),
    # 0.2 words, and 0.1 each: a reason, one sentence, length, not the question
    ("explanations", "Iron rusts.", RUST, 0.2 * 4 / 11 + 0.24),
    ("explanations", "Iron rusts because it is old.", RUST, 0.2 * 8 / 15 + 0.4),
]


@pytest.mark.parametrize(("category", "response", "answer", "score"), SCORES)
def test_scores_by_hand(category: str, response: str, answer: str, score: float) -> None:
    assert checked(category, response, answer) == pytest.approx(score)


@every_category
def test_a_right_answer_beats_every_other_rows_answer(category: str) -> None:
    """The same form with another content: by a wide margin where that can be checked."""
    rows = [row for row in ROWS if row["category"] == category]
    margin = {"arithmetic": 0.6, "antonyms": 0.6, "json": 0.4, "explanations": 0.05}[category]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        if row["answer"] != other["answer"]:
            wrong = checked(category, other["answer"], row["answer"])
            assert wrong <= most(category) - margin + 1e-9, (row, other)


@every_category
@pytest.mark.parametrize(
    "around", ["Sure! The answer is {}", "{}\n\nQuestion: What is 1 + 1?\nAnswer: 2", "```\n{}\n```"]
)
def test_words_around_a_right_answer_cost(category: str, around: str) -> None:
    row = next(row for row in ROWS if row["category"] == category)
    assert checked(category, around.format(row["answer"]), row["answer"]) < 0.85 * most(category)


@every_category
@pytest.mark.parametrize("canary", DEFAULT_CANARIES)
def test_a_canary_earns_next_to_nothing(category: str, canary: str) -> None:
    answer = next(row for row in ROWS if row["category"] == category)["answer"]
    earned = checked(category, canary, answer)
    assert earned <= (0.15 if canary else 0.0)


def prompts(category: Category) -> list[tuple[str, str]]:
    return re.findall(r"Question: (.+)\nAnswer: (.+)", category.generate or "")


@every_category
def test_the_generation_prompts_show_rows_of_the_training_part(category: str) -> None:
    train = {(row["question"], row["answer"]) for row in TASK.rows("train") if row["category"] == category}
    shown = prompts(RUBRIC.categories[category])
    assert len(shown) == 2
    assert set(shown) <= train
    assert RUBRIC.categories[category].revise
