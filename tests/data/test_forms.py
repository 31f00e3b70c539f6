"""Questions whose form only the rubric's prompts name: the rows, the answers' form, the splits, and the rubric."""

import hashlib
import json
import re
from collections import Counter

from vigneron.data import forms
from vigneron.data.tasks import load_task
from vigneron.rewards.checkers import is_exact
from vigneron.rubric.model import StringCheckItem, TextSimilarityItem
from vigneron.rubric.read import read_rubric

DIGEST = "ca18d4c0803083d2efd114fb88dd952f5f615bbedfca334dea225593802975c3"
ROWS = forms.generate()
FORMS = ("codeword", "order", "units", "note")
RUBRIC = read_rubric("study-forms")


def worked_out(category: str, question: str) -> str:
    """The answer, from the question alone."""
    if category == "codeword":
        return "sesame " + question.split("'")[1]
    if category == "order":
        return " < ".join(reversed(question.removeprefix("List these words: ").rstrip(".").split(", ")))
    if category == "units":
        return f"{int(re.findall(r'[0-9]+', question)[0]) * 100} cm"
    name, age = re.fullmatch(r"Note that (\w+) is (\d+)\.", question).groups()  # type: ignore[union-attr]
    return f"{age}|{name.lower()}"


def content(row: dict[str, str]) -> set[str]:
    """What an answer is about: nouns, the number of meters, or the name."""
    found = {
        "codeword": re.findall(r"'(\w+)'", row["question"]),
        "order": re.findall(r"\w+", row["question"])[3:],
        "units": re.findall(r"\d+", row["question"]),
        "note": re.findall(r"that (\w+)", row["question"]),
    }
    return set(found[row["category"]])


def test_the_rows_are_the_same_on_every_machine() -> None:
    assert hashlib.sha256(json.dumps(ROWS).encode()).hexdigest() == DIGEST


def test_every_answer_has_its_form_and_is_right() -> None:
    for row in ROWS:
        assert row["answer"] == worked_out(row["category"], row["question"]), row


def test_sizes() -> None:
    sizes = {"train": 50, "tuning": 10, "held_out": 25}
    assert Counter((row["category"], row["split"]) for row in ROWS) == {
        (category, split): size for category in FORMS for split, size in sizes.items()
    }
    assert len({row["question"] for row in ROWS}) == len(ROWS)


def test_the_splits_share_no_content() -> None:
    for category in FORMS:
        parts = {split: set() for split in forms.SPLITS}  # type: dict[str, set[str]]
        for row in ROWS:
            if row["category"] == category:
                parts[row["split"]] |= content(row)
        assert not parts["train"] & parts["tuning"]
        assert not parts["held_out"] & (parts["train"] | parts["tuning"])


def test_a_plain_answer_to_a_question_is_wrong() -> None:
    """Without the form, the right content does not count: the question's own words are never the answer."""
    for row in ROWS:
        for plain in (" ".join(sorted(content(row))), row["question"], ", ".join(content(row))):
            assert not is_exact(plain, row["answer"])


def test_no_question_says_what_only_the_prompts_say() -> None:
    for row in ROWS:
        assert not re.search(r"sesame|<|\bcm\b|centi|\||revers|order", row["question"]), row


def test_all_items_are_of_truth_and_checked_by_rules() -> None:
    for category in RUBRIC.categories.values():
        assert all(item.tags == ("truth",) for item in category.items)
        assert all(isinstance(item, StringCheckItem | TextSimilarityItem) for item in category.items)


def test_the_examples_of_the_prompts_are_right_and_not_held_out() -> None:
    for name in FORMS:
        others = {word for row in ROWS if row["category"] == name and row["split"] != "train" for word in content(row)}
        category = RUBRIC.categories[name]
        shown = re.findall(r"Question: (.+)\nAnswer: (.+)", f"{category.generate}{category.revise}")
        assert len(shown) == 4
        for question, answer in shown:
            assert answer == worked_out(name, question)
            assert not content({"category": name, "question": question}) & others


def test_the_task_has_these_rows_and_those_of_the_rubric_study() -> None:
    rows = load_task("forms").rows("held_out")
    assert Counter(row["category"] for row in rows) == dict.fromkeys(FORMS, 25) | dict.fromkeys(
        ("arithmetic", "antonyms", "json", "explanations"), 20
    )
    assert set(RUBRIC.categories) == {row["category"] for row in rows}
