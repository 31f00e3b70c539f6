"""The recorded data: columns, splits, sizes, and the rules that the data card states."""

import json
import re
from collections import Counter, defaultdict
from importlib import resources

import pytest

INPUTS = {
    "colors": ("first", "second"),
    "antonyms": ("word",),
    "categories": ("word",),
    "copying": ("sentence",),
    "sentiment": ("sentence",),
}
SPLITS = ("train", "tuning", "held_out")
SMALLEST = {
    "colors": (60, 14, 26),
    "antonyms": (254, 87, 90),
    "categories": (200, 45, 85),
    "copying": (160, 35, 65),
    "sentiment": (160, 35, 65),
}
FOLDER = resources.files("vigneron") / "data" / "task_files"
ROWS: dict[str, list[dict[str, str]]] = {
    name: [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in INPUTS
}
QUOTES = set("'\"`´‘’“”")

every_task = pytest.mark.parametrize("name", INPUTS)
sentences = pytest.mark.parametrize("name", ["copying", "sentiment"])


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def first_answers() -> dict[tuple[str, str], dict[str, str]]:
    return {(row["first"], row["second"]): row for row in ROWS["colors"]}


@every_task
def test_every_row_has_its_columns_and_nothing_else(name: str) -> None:
    for row in ROWS[name]:
        assert list(row) == [*INPUTS[name], "answer", "split"], row
        assert all(isinstance(value, str) and value == " ".join(value.split()) != "" for value in row.values()), row
        assert row["split"] in SPLITS, row


@every_task
def test_no_input_stands_twice_whatever_its_case(name: str) -> None:
    asked = Counter(tuple(row[column].casefold() for column in INPUTS[name]) for row in ROWS[name])
    assert [key for key, times in asked.items() if times > 1] == []


@every_task
def test_every_split_is_large_enough(name: str) -> None:
    sizes = Counter(row["split"] for row in ROWS[name])
    assert all(sizes[split] >= least for split, least in zip(SPLITS, SMALLEST[name], strict=True)), sizes


@every_task
def test_the_card_gives_the_sizes(name: str) -> None:
    sizes = Counter(row["split"] for row in ROWS[name])
    numbers = " | ".join(str(size) for size in (len(ROWS[name]), *(sizes[split] for split in SPLITS)))
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `{name}\.jsonl` \|[^|]*\| {re.escape(numbers)} \|", card), numbers


@pytest.mark.parametrize(("name", "pattern"), [("colors", r"[a-z]+( [a-z]+)?"), ("antonyms", r"[a-z]+")])
def test_inputs_and_answers_are_lowercase_words(name: str, pattern: str) -> None:
    for row in ROWS[name]:
        assert all(re.fullmatch(r"[a-z]+", row[column]) for column in INPUTS[name]), row
        assert re.fullmatch(pattern, row["answer"]), row


def test_every_ordered_pair_of_the_colors_is_there() -> None:
    colors = {row["first"] for row in ROWS["colors"]}
    assert len(colors) >= 10
    assert len(ROWS["colors"]) >= 100
    assert set(first_answers()) == {(one, other) for one in colors for other in colors if one != other}


def test_the_order_of_the_colors_changes_neither_answer_nor_split() -> None:
    rows = first_answers()
    for (first, second), row in rows.items():
        swapped = rows[second, first]
        assert (row["answer"], row["split"]) == (swapped["answer"], swapped["split"]), row


def test_every_color_is_in_every_split() -> None:
    colors = {row["first"] for row in ROWS["colors"]}
    for split in SPLITS:
        assert {row["first"] for row in ROWS["colors"] if row["split"] == split} == colors


@pytest.mark.parametrize(
    ("pair", "answer"),
    [
        ("red blue", "purple"),
        ("red yellow", "orange"),
        ("blue yellow", "green"),
        ("white black", "gray"),
        ("blue white", "light blue"),
        ("green black", "dark green"),
        ("brown red", "red brown"),
        ("purple green", "brown"),
        ("pink blue", "light purple"),
    ],
)
def test_mixtures_by_hand(pair: str, answer: str) -> None:
    first, second = pair.split()
    assert first_answers()[first, second]["answer"] == answer


def test_black_and_gray_follow_their_rule() -> None:
    for (first, second), row in first_answers().items():
        if first == "black" and second != "white":
            assert row["answer"] == f"dark {second}"
        if first == "gray" and second not in ("white", "black"):
            assert row["answer"] == f"dull {second}"


def test_every_word_of_a_held_out_color_is_in_an_answer_of_training() -> None:
    seen = {word for row in ROWS["colors"] if row["split"] == "train" for word in words_of(row["answer"])}
    assert [row for row in ROWS["colors"] if not words_of(row["answer"]) <= seen] == []


def test_no_antonym_family_straddles_two_splits() -> None:
    splits: dict[str, set[str]] = defaultdict(set)
    for row in ROWS["antonyms"]:
        splits[row["word"]].add(row["split"])
        splits[row["answer"]].add(row["split"])
    assert {word: found for word, found in splits.items() if len(found) > 1} == {}


def test_few_held_out_antonyms_are_training_rows_reversed() -> None:
    asked = {(row["word"], row["answer"]) for row in ROWS["antonyms"] if row["split"] == "train"}
    held_out = [row for row in ROWS["antonyms"] if row["split"] == "held_out"]
    assert sum((row["answer"], row["word"]) in asked for row in held_out) <= len(held_out) / 2


def test_every_category_has_enough_words_in_each_split() -> None:
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for row in ROWS["categories"]:
        assert re.fullmatch(r"[A-Z]?[a-z]+", row["word"]), row
        assert re.fullmatch(r"[a-z]+", row["answer"]), row
        sizes[row["answer"]][row["split"]] += 1
    assert len(sizes) >= 20
    for category, size in sizes.items():
        assert size["train"] >= 8, category
        assert size["tuning"] >= 2, category
        assert size["held_out"] >= 2, category


def test_no_word_is_the_name_of_a_category() -> None:
    assert not {row["word"].lower() for row in ROWS["categories"]} & {row["answer"] for row in ROWS["categories"]}


def test_the_papers_categories_are_there_and_answered_as_in_the_paper() -> None:
    """PGSRM, A.3; its examples are no held-out rows."""
    paper = {
        "apple": "fruit",
        "tiger": "animal",
        "rose": "flower",
        "guitar": "instrument",
        "carrot": "vegetable",
        "eagle": "bird",
        "shirt": "clothing",
    }
    found = {row["word"]: row for row in ROWS["categories"] if row["word"] in paper}
    assert {word: row["answer"] for word, row in found.items()} == paper
    assert {row["split"] for row in found.values()} == {"train"}


@sentences
def test_sentences_end_with_a_mark_and_hold_no_quotes(name: str) -> None:
    for row in ROWS[name]:
        for text in (row["sentence"], row["answer"]):
            assert re.fullmatch(r"[A-Z][A-Za-z0-9, ]*[.!?]", text), row
            assert not QUOTES & set(text), row


def test_a_copy_is_exact_and_short() -> None:
    for row in ROWS["copying"]:
        assert row["answer"] == row["sentence"]
        assert 3 <= len(row["sentence"].split()) <= 7, row


def test_no_two_sentences_to_copy_are_nearly_the_same() -> None:
    texts = [(row["sentence"], words_of(row["sentence"])) for row in ROWS["copying"]]
    close = [
        (one, other)
        for place, (one, left) in enumerate(texts)
        for other, right in texts[:place]
        if len(left & right) >= 0.5 * len(left | right)
    ]
    assert close == []


def test_sentiment_is_in_the_first_person_on_both_sides() -> None:
    for row in ROWS["sentiment"]:
        assert row["sentence"].split()[0] in ("I", "My"), row
        assert words_of(row["answer"]) & {"i", "my", "me"}, row
        assert row["sentence"] != row["answer"]


def test_no_sad_sentence_stands_twice_or_as_a_happy_one() -> None:
    sad = Counter(row["answer"].casefold() for row in ROWS["sentiment"])
    assert [text for text, times in sad.items() if times > 1] == []
    assert not sad.keys() & {row["sentence"].casefold() for row in ROWS["sentiment"]}


def test_a_sad_sentence_keeps_to_its_topic() -> None:
    """Shared words that say nothing about the topic do not count."""
    idle = words_of(
        "I my me am is are was were feel the a an of in to and so that it with at by for on be being have had has very "
        "this too made make makes about after when how because from without before back again all up out than we you "
        "your him her no never not will can cannot every each"
    )
    rows = ROWS["sentiment"]
    shared = [row for row in rows if (words_of(row["sentence"]) & words_of(row["answer"])) - idle]
    assert len(shared) >= 0.9 * len(rows)
