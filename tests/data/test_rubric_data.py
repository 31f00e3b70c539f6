"""The questions of the rubric study: what the card states, sums and JSON worked out anew, families in one split."""

import json
import re
from collections import Counter, defaultdict
from importlib import resources

import pytest

from support.tiny_models import smollm2_tokenizer
from vigneron.data.tasks import load_task

FOLDER = resources.files("vigneron") / "data" / "task_files"
Rows = list[dict[str, str]]


def recorded(name: str) -> Rows:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


ROWS = recorded("rubric")
CARD = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
SIZES = {"train": 50, "tuning": 10, "held_out": 20}
CATEGORIES = ("arithmetic", "antonyms", "json", "explanations")
OF = {category: [row for row in ROWS if row["category"] == category] for category in CATEGORIES}
REASON = "Explain in one sentence why "

every_split = pytest.mark.parametrize("split", SIZES)
every_category = pytest.mark.parametrize("category", CATEGORIES)


def splits_of(families: list[tuple[object, str]]) -> dict[object, set[str]]:
    """The families that stand in more than one split."""
    found: dict[object, set[str]] = defaultdict(set)
    for family, split in families:
        found[family].add(split)
    return {family: splits for family, splits in found.items() if len(splits) > 1}


def test_every_row_has_its_columns_and_nothing_else() -> None:
    for row in ROWS:
        assert list(row) == ["question", "category", "answer", "split"], row
        assert all(isinstance(value, str) and value == " ".join(value.split()) != "" for value in row.values()), row
        assert all(value.isascii() for value in row.values()), row


@every_category
def test_every_category_has_its_rows_in_every_split(category: str) -> None:
    assert Counter(row["split"] for row in OF[category]) == SIZES


def test_the_card_gives_the_sizes() -> None:
    assert len(ROWS) == sum(len(rows) for rows in OF.values()) == 320
    assert "| `rubric.jsonl` | `question` | 320 | 200 | 40 | 80 |" in CARD


def test_the_card_shows_a_row_of_every_category() -> None:
    shown = [
        (row["category"], f"| `{row['category']}` | {row['question']} | {row['answer']} |" in CARD) for row in ROWS
    ]
    assert [category for category, there in shown if there] == sorted(CATEGORIES, key=CATEGORIES.index)


def test_no_question_stands_twice() -> None:
    asked = Counter(" ".join(re.findall(r"[\w+-]+", row["question"].casefold())) for row in ROWS)
    assert [text for text, times in asked.items() if times > 1] == []


@every_split
def test_a_run_sees_the_question_as_prompt_and_its_category(split: str) -> None:
    rows = [row for row in ROWS if row["split"] == split]
    for row, seen in zip(rows, load_task("rubric").rows(split), strict=True):
        prompt = f"Question: {row['question']}\nAnswer:"
        assert seen == {**row, "prompt": prompt, "input": row["question"]}


@every_category
def test_the_bundled_child_can_say_every_answer_and_stop_within_24_tokens(category: str) -> None:
    tokenizer = smollm2_tokenizer()
    lengths = [len(tokenizer(f" {row['answer']}", add_special_tokens=False)["input_ids"]) for row in OF[category]]
    assert max(lengths) < 24
    least, most = min(lengths), max(lengths)
    said = f"{least} to {most}" if least < most else f"{least}"
    assert f"`{category}` {said}" in CARD, said


# ---------------------------------------------------------------------------------------------- arithmetic

SUM = re.compile(r"What is (\d+) (?:\+|plus) (\d+)\?|Add (\d+) and (\d+)\.")
DIFFERENCE = re.compile(r"What is (\d+) (?:-|minus) (\d+)\?")
SUBTRACT = re.compile(r"Subtract (\d+) from (\d+)\.")
PRODUCT = re.compile(r"What is (\d+) times (\d+)\?|Multiply (\d+) by (\d+)\.")


def worked_out(question: str) -> tuple[int, tuple[object, ...]]:
    """The result, and the family: 3 + 5, 5 + 3, 8 - 3 and 8 - 5 are one."""
    if found := SUM.fullmatch(question):
        a, b = (int(number) for number in found.groups() if number)
        return a + b, ("sum", *sorted((a, b)))
    if found := DIFFERENCE.fullmatch(question):
        a, b = map(int, found.groups())
        return a - b, ("sum", *sorted((a - b, b)))
    if found := SUBTRACT.fullmatch(question):
        b, a = map(int, found.groups())
        return a - b, ("sum", *sorted((a - b, b)))
    found = PRODUCT.fullmatch(question)
    assert found, question
    a, b = (int(number) for number in found.groups() if number)
    return a * b, ("product", *sorted((a, b)))


def test_sums_by_hand() -> None:
    assert worked_out("What is 3 + 5?") == (8, ("sum", 3, 5))
    assert worked_out("Subtract 5 from 8.") == worked_out("What is 8 minus 5?") == (3, ("sum", 3, 5))
    assert worked_out("Multiply 7 by 2.") == (14, ("product", 2, 7))


def test_every_sum_is_right() -> None:
    for row in OF["arithmetic"]:
        assert row["answer"] == str(worked_out(row["question"])[0]), row
        assert 0 < int(row["answer"]) < 100, row


def test_no_sum_is_asked_in_another_way() -> None:
    families = Counter(worked_out(row["question"])[1] for row in OF["arithmetic"])
    assert [family for family, times in families.items() if times > 1] == []


@every_split
def test_every_split_has_every_level(split: str) -> None:
    kinds = Counter()
    for row in OF["arithmetic"]:
        if row["split"] == split:
            _, (kind, _, larger) = worked_out(row["question"])
            kinds[kind, isinstance(larger, int) and larger > 9] += 1
    assert (
        kinds
        == {
            "train": {("sum", False): 23, ("sum", True): 21, ("product", False): 6},
            "tuning": {("sum", False): 5, ("sum", True): 4, ("product", False): 1},
            "held_out": {("sum", False): 10, ("sum", True): 8, ("product", False): 2},
        }[split]
    )


# ---------------------------------------------------------------------------------------------- antonyms


def asked_word(row: dict[str, str]) -> str:
    found = re.fullmatch(r"Give the opposite of '([a-z]+)' in one word\.", row["question"])
    assert found, row
    return found[1]


def test_opposites_are_those_of_the_antonyms_and_none_is_held_out_there() -> None:
    """What is trained on here is trained on there; what is kept from training here is not trained on there either."""
    there = {(row["word"], row["answer"]): row["split"] for row in recorded("antonyms")}
    for row in OF["antonyms"]:
        expected = "train" if row["split"] == "train" else "tuning"
        assert there[asked_word(row), row["answer"]] == expected, row
    held_out = {word for pair, split in there.items() if split == "held_out" for word in pair}
    assert not held_out & {word for row in OF["antonyms"] for word in (asked_word(row), row["answer"])}


def test_both_directions_of_a_pair_are_in_one_split() -> None:
    said = [(word, row["split"]) for row in OF["antonyms"] for word in (asked_word(row), row["answer"])]
    assert splits_of(list(said)) == {}


# ---------------------------------------------------------------------------------------------- json


def test_every_object_is_what_the_question_says() -> None:
    for row in OF["json"]:
        held = json.loads(row["answer"])
        assert row["answer"] == json.dumps(held)
        named, _, about = row["question"].partition(" for ")
        assert list(held) == re.findall(r'"(\w+)"', named), row
        assert 1 <= len(held) <= 3
        said = re.findall(r"\w+", about)
        for key, value in held.items():
            if isinstance(value, bool):
                assert value is not ("not" in said), row
            else:
                assert isinstance(value, str | int), row
                assert str(value) in said, (key, row)


def test_no_object_is_asked_for_twice_and_its_subject_in_one_split() -> None:
    objects = Counter(row["answer"].casefold() for row in OF["json"])
    assert [text for text, times in objects.items() if times > 1] == []
    subjects = [(next(iter(json.loads(row["answer"]).values())), row["split"]) for row in OF["json"]]
    assert splits_of(list(subjects)) == {}


def test_three_sets_of_keys_are_held_out() -> None:
    keys: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in OF["json"]:
        keys[row["split"]].add(tuple(json.loads(row["answer"])))
    assert keys["tuning"] <= keys["train"]
    assert keys["held_out"] - keys["train"] == {("shape", "sides"), ("planet", "looks"), ("day", "rain")}
    assert len(keys["train"]) == 12


# ---------------------------------------------------------------------------------------------- explanations


def content(question: str) -> frozenset[str]:
    """The words that say what is to be explained."""
    idle = re.compile(r"a|an|the|in|on|of|to|is|are|has|have|we|our|people|why|do|does")
    said = re.findall(r"[a-z]+", question.removeprefix(REASON).casefold())
    return frozenset(word for word in said if not idle.fullmatch(word))


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def test_an_explanation_is_one_sentence_of_5_to_20_words() -> None:
    for row in OF["explanations"]:
        assert re.fullmatch(rf"{REASON}[A-Za-z0-9 ]+\.", row["question"]), row
        assert re.fullmatch(r"[A-Z][A-Za-z0-9', ]*\.", row["answer"]), row
        assert re.search(r"\b(because|so that|to)\b", row["answer"]), row
    words = [len(row["answer"].split()) for row in OF["explanations"]]
    assert 5 <= min(words) <= max(words) <= 20
    assert f"of {min(words)} to {max(words)} words" in CARD


def test_likeness_by_hand() -> None:
    assert likeness(content(f"{REASON}people wear gloves in winter."), content("Why do bears wear gloves?")) == 2 / 4


def test_no_two_splits_explain_the_same_thing() -> None:
    asked = [(row, content(row["question"])) for row in OF["explanations"]]
    close = [
        (one["question"], other["question"])
        for place, (one, left) in enumerate(asked)
        for other, right in asked[:place]
        if one["split"] != other["split"] and likeness(left, right) > 0.25
    ]
    assert close == []


def test_the_instructions_ask_for_none_of_these_reasons() -> None:
    others = [content(row["instruction"]) for row in recorded("instructions") if row["kind"] == "reason"]
    close = [row for row in OF["explanations"] if max(likeness(content(row["question"]), one) for one in others) >= 0.5]
    assert close == []


# ---------------------------------------------------------------------------------------------- the parent


def test_the_parents_examples_are_right_and_no_rows() -> None:
    examples = re.findall(r'^- "(.+)" → (.+)$', load_task("rubric").parent_instruction, re.MULTILINE)
    assert len(examples) == len(CATEGORIES)
    assert not {question for question, _ in examples} & {row["question"] for row in ROWS}
    result, family = worked_out(examples[0][0])
    assert result == int(examples[0][1])
    assert family not in {worked_out(row["question"])[1] for row in OF["arithmetic"]}
    assert json.loads(examples[2][1]) == {"size": "large"}
