"""The instructions with their preference pairs: the rules that the data card states, and the rows that a run sees."""

import hashlib
import json
import re
from collections import Counter
from importlib import resources

import pytest

from support.tiny_models import smollm2_tokenizer
from vigneron.data.tasks import TASKS, load_task
from vigneron.sources.embedders import load_embedder

FOLDER = resources.files("vigneron") / "data" / "task_files"
ROWS: list[dict[str, str]] = [
    json.loads(line) for line in (FOLDER / "instructions.jsonl").read_text(encoding="utf-8").splitlines()
]
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
FIRST_240 = "6a2a3b22bbac5bd507e5e3e24b4a5ebe2fef5f3168cab125ff23726f7dfd3c1c"
SIZES = {"train": 436, "tuning": 78, "held_out": 122}
FIRST_KINDS = {"fact", "definition", "how_to", "reply", "choice", "reason", "shorter", "encouragement"}
LATER_KINDS = {"explain", "list", "rewrite", "compare", "advise", "describe"}
KINDS = FIRST_KINDS | LATER_KINDS
FIRST = [row for row in ROWS if row["kind"] in FIRST_KINDS]
LATER = [row for row in ROWS if row["kind"] in LATER_KINDS]

every_split = pytest.mark.parametrize("split", SIZES)


def words(text: str) -> list[str]:
    return text.split()


def word_set(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def test_every_row_has_its_columns_and_nothing_else() -> None:
    for row in ROWS:
        assert list(row) == ["instruction", "chosen", "rejected", "kind", "split"], row
        assert all(isinstance(value, str) and value == " ".join(value.split()) != "" for value in row.values()), row
        assert all(value.isascii() for value in row.values()), row


def test_the_splits_have_their_sizes_and_the_card_gives_them() -> None:
    assert Counter(row["split"] for row in ROWS) == SIZES
    assert "| `instructions.jsonl` | `instruction` | 636 | 436 | 78 | 122 |" in CARD


def test_the_first_240_rows_are_as_they_were_with_their_splits() -> None:
    """Results from before the file grew are about these; a held-out row of theirs is never trained on."""
    lines = (FOLDER / "instructions.jsonl").read_bytes().splitlines(keepends=True)
    assert hashlib.sha256(b"".join(lines[:240])).hexdigest() == FIRST_240
    assert ROWS[:240] == FIRST


@every_split
def test_every_kind_has_its_share_of_a_split(split: str) -> None:
    sizes = Counter(row["kind"] for row in ROWS if row["split"] == split)
    first, later = ([sizes[kind] for kind in kinds] for kinds in (FIRST_KINDS, LATER_KINDS))
    assert set(sizes) == KINDS
    assert max(first) - min(first) <= 1, sizes
    assert set(later) == {{"train": 46, "tuning": 8, "held_out": 12}[split]}, sizes


def test_every_kind_has_its_rows_and_a_line_in_the_card() -> None:
    assert Counter(row["kind"] for row in ROWS) == dict.fromkeys(FIRST_KINDS, 30) | dict.fromkeys(LATER_KINDS, 66)
    section = CARD.partition("## Instructions\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \| ([^|`]+) \| ([^|`]+) \|$", section, re.MULTILINE)
    assert {kind for kind, _, _ in shown} == KINDS
    for kind, instruction, chosen in shown:
        (row,) = (row for row in ROWS if row["instruction"] == instruction)
        assert (row["kind"], row["chosen"]) == (kind, chosen)


def test_lengths_in_words() -> None:
    for row in ROWS:
        assert 4 <= len(words(row["instruction"])) <= 16, row
        least, most = (4, 14) if row["kind"] in FIRST_KINDS else (3, 18)
        assert least <= len(words(row["chosen"])) <= most, row
        assert 1 <= len(words(row["rejected"])) <= 25, row


def test_a_chosen_answer_is_one_sentence_or_two() -> None:
    for row in FIRST:
        assert re.fullmatch(r"[A-Z][A-Za-z', -]*\.", row["chosen"]), row
    for row in LATER:
        assert re.fullmatch(r"([A-Z][A-Za-z', -]*[.!?] )?[A-Z][A-Za-z',\" -]*[.!?]\"?", row["chosen"]), row


def test_no_answer_stands_twice() -> None:
    assert len({" ".join(re.findall(r"\w+", row["chosen"].casefold())) for row in ROWS}) == len(ROWS)


def test_a_rejected_answer_is_chosen_nowhere_else_than_in_swapped_pairs() -> None:
    owners = {row["chosen"].casefold(): row for row in ROWS}
    assert [row for row in FIRST if row["rejected"].casefold() in owners] == []
    swapped = [(row, owners[row["rejected"].casefold()]) for row in LATER if row["rejected"].casefold() in owners]
    assert len(swapped) == len(LATER) // 2
    for row, owner in swapped:
        assert row is not owner
        assert (row["kind"], row["split"]) == (owner["kind"], owner["split"])


def fault(row: dict[str, str]) -> str:
    """Which rule made the rejected answer of a later row."""
    chosen, rejected = (re.findall(r"[\w'-]+", row[column].lower()) for column in ("chosen", "rejected"))
    if any(row["rejected"] == other["chosen"] for other in LATER):
        return "swapped"
    if row["rejected"] == row["instruction"]:
        return "repeated"
    if row["rejected"].endswith(".") and rejected[0] in ("i", "as", "this", "unfortunately"):
        return "refused"
    if ", " in row["rejected"] and set(rejected) <= set(chosen):
        return "listed"
    if row["chosen"].startswith(row["rejected"].rsplit(" ", 2)[0].rsplit(" and", 1)[0][:6]):
        return "cut"
    return "shuffled" if set(rejected) == set(chosen) else "?"


def test_the_rejected_answers_of_later_rows_follow_the_rules_of_the_card() -> None:
    faults = Counter(fault(row) for row in LATER)
    assert faults.pop("swapped") == len(LATER) // 2
    assert set(faults) == {"repeated", "refused", "listed", "cut", "shuffled"}
    assert max(faults.values()) - min(faults.values()) <= 8, faults


@pytest.mark.slow
def test_no_two_instructions_or_answers_mean_the_same() -> None:
    embedder = load_embedder("minilm")
    for rows, column in ((ROWS, "instruction"), (LATER, "chosen")):
        vectors_ND = embedder.embed([row[column] for row in rows])
        cosines_NN = (vectors_ND / vectors_ND.norm(dim=1, keepdim=True)) @ vectors_ND.T
        cosines_NN = cosines_NN / vectors_ND.norm(dim=1)
        cosines_NN.fill_diagonal_(0)
        close = [(rows[i][column], rows[j][column]) for i, j in (cosines_NN >= 0.9).nonzero().tolist()]
        assert close == []


def test_no_instruction_stands_twice() -> None:
    asked = Counter(" ".join(re.findall(r"\w+", row["instruction"].casefold())) for row in ROWS)
    assert [text for text, times in asked.items() if times > 1] == []


def test_no_two_splits_have_nearly_the_same_instruction() -> None:
    asked = [(row, word_set(row["instruction"])) for row in ROWS]
    close = [
        (one["instruction"], other["instruction"])
        for place, (one, left) in enumerate(asked)
        for other, right in asked[:place]
        if one["split"] != other["split"] and likeness(left, right) >= 0.8
    ]
    assert close == []


def test_likeness_by_hand() -> None:
    left, right = word_set("What is a glacier?"), word_set("What is a Desert")
    assert likeness(left, right) == pytest.approx(3 / 5)


@every_split
def test_length_does_not_tell_which_answer_is_rejected(split: str) -> None:
    """Neither "the longer one" nor "the shorter one" is a good guess."""
    more = [len(words(row["rejected"])) - len(words(row["chosen"])) for row in ROWS if row["split"] == split]
    assert sum(difference <= 0 for difference in more) >= 0.4 * len(more)
    assert sum(difference >= 0 for difference in more) >= 0.4 * len(more)


def test_the_card_gives_the_shares_of_the_lengths() -> None:
    more = [len(words(row["rejected"])) - len(words(row["chosen"])) for row in ROWS]
    longer, equal = sum(difference > 0 for difference in more), sum(difference == 0 for difference in more)
    shares = [f"{count / len(more):.0%}".replace("%", " %") for count in (longer, equal, len(more) - longer - equal)]
    stated = "longer in {} of the rows, as long in {} and shorter in {}".format(*shares)
    assert stated in " ".join(CARD.split()), stated


def test_the_bundled_child_can_say_every_chosen_answer_in_24_tokens() -> None:
    tokenizer = smollm2_tokenizer()
    lengths = [len(tokenizer(f" {row['chosen']}", add_special_tokens=False)["input_ids"]) for row in ROWS]
    assert max(lengths) <= 24
    assert f"a chosen answer to an instruction {min(lengths)} to {max(lengths)}" in " ".join(CARD.split())


@every_split
def test_a_run_sees_prompt_input_answer_and_the_pair(split: str) -> None:
    recorded = [row for row in ROWS if row["split"] == split]
    for row, seen in zip(recorded, load_task("instructions").rows(split), strict=True):
        assert seen == {
            **row,
            "chosen": f" {row['chosen']}",
            "rejected": f" {row['rejected']}",
            "prompt": f"Instruction: {row['instruction']}\nAnswer:",
            "input": row["instruction"],
            "answer": row["chosen"],
        }


@pytest.mark.slow
def test_other_tasks_have_no_pairs() -> None:
    assert [name for name, task in TASKS.items() if "chosen" in task.rows("train")[0]] == ["instructions"]


def test_the_parents_examples_keep_the_rules_and_are_no_rows() -> None:
    examples = re.findall(r'^- "(.+)" → "(.+)"$', load_task("instructions").parent_instruction, re.MULTILINE)
    assert len(examples) == 3
    asked = [word_set(row["instruction"]) for row in ROWS]
    for instruction, answer in examples:
        assert 4 <= len(words(answer)) <= 14
        assert re.fullmatch(r"[A-Z][^.!?]*\.", answer)
        assert max(likeness(word_set(instruction), other) for other in asked) < 0.8, instruction
