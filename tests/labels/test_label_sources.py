"""Where items come from: a run's samples, a dataset; which completions meet, and in which order they are shown."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.labelling import make_run, sample, write_rows
from vigneron.errors import UserError
from vigneron.labels.from_file import comparisons_of_file
from vigneron.labels.from_run import comparisons_of_run, spread
from vigneron.labels.items import LONGEST_SHOWN, Comparison, make_comparisons, shown_text, shuffled


def texts(items: list[Comparison]) -> set[tuple[str, frozenset[str]]]:
    return {(item.prompt, frozenset(item.completions)) for item in items}


def test_every_completion_stands_in_one_pair_at_most() -> None:
    items = make_comparisons("p", ["a", "b", " a ", "", "c", "d", "e"], "pairs", seed=0)
    used = [text for item in items for text in item.completions]
    assert len(items) == 2
    assert len(set(used)) == 4
    assert set(used) <= {"a", "b", "c", "d", "e"}
    assert make_comparisons("p", ["e", "d", "c", "b", "a"], "pairs", seed=0) == items
    assert {tuple(make_comparisons("p", list("abcde"), "pairs", seed=n)) for n in range(20)} != {tuple(items)}


def test_a_group_is_as_large_as_there_are_digits() -> None:
    (item,) = make_comparisons("p", [str(n) for n in range(30)], "best", seed=0)
    assert len(set(item.completions)) == 9
    assert make_comparisons("p", ["same", "same "], "best", seed=0) == []


def test_the_shown_order_is_fair_and_each_labellers_own() -> None:
    first = Counter(shuffled(2, 0, f"item {n}", "ann")[0] for n in range(1000))
    assert 430 < first[0] < 570
    assert shuffled(5, 0, "item", "ann") == shuffled(5, 0, "item", "ann")
    both = [(shuffled(2, 0, n, "ann"), shuffled(2, 0, n, "bob")) for n in range(100)]
    assert 30 < sum(one == other for one, other in both) < 70


def test_a_run_gives_pairs_of_one_prompt_and_first_against_last_of_what_is_held_out(tmp_path: Path) -> None:
    samples = [sample(1, 0, "p", "a"), sample(1, 1, "p", "b"), sample(2, 0, "p", "c"), sample(3, 0, "q", "alone")]
    samples += [sample(step, 0, "h", f"after {step}", "eval") for step in (0, 2, 4)]
    run = make_run(tmp_path / "run", samples)
    found = texts(comparisons_of_run(run, kind="pairs", step=None, seed=0).items)
    assert ("h", frozenset({"after 0", "after 4"})) in found
    assert len(found) == 2
    assert all(prompt != "q" for prompt, _ in found)
    same_step = texts(comparisons_of_run(run, kind="pairs", step=1, seed=0).items)
    assert same_step == {("p", frozenset({"a", "b"}))}
    assert texts(comparisons_of_run(run, kind="best", step=None, seed=0).items) == same_step


def test_a_conversation_of_a_run_is_one_again(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "hi"}]
    samples = [sample(1, 0, "user: hi", "a"), sample(1, 1, "user: hi", "b"), sample(1, 2, "user: lost", "c")]
    found = comparisons_of_run(make_run(tmp_path / "run", samples, [asked]), kind="pairs", step=None, seed=0)
    (item,) = found.items
    assert item.prompt == asked
    assert sorted(item.completions, key=str) == [[{"role": "assistant", "content": text}] for text in "ab"]
    assert "1 prompts" in found.notices[0]


def test_of_a_long_run_some_steps_are_read_the_ends_among_them() -> None:
    kept = list(range(0, 100_000, 10))
    chosen = spread(kept, 50)
    assert len(set(chosen)) == 50
    assert (chosen[0], chosen[-1]) == (0, 99_990)
    assert spread([1, 2, 3], 50) == [1, 2, 3]


MESSAGE = [{"role": "assistant", "content": "good"}]
ASKED = [{"role": "user", "content": "p"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "p", "completions": ["good", "bad"]}, ("p", ("good", "bad"))),
        ({"prompt": "p", "chosen": "good", "rejected": "bad"}, ("p", ("good", "bad"))),
        ({"prompt": "p", "completion_a": "good", "completion_b": "bad"}, ("p", ("good", "bad"))),
        (
            {"prompt": ASKED, "completions": [MESSAGE, "bad"]},
            (ASKED, (MESSAGE, [{"role": "assistant", "content": "bad"}])),
        ),
        ({"chosen": "the sky is blue", "rejected": "the sky is red"}, ("the sky is", (" blue", " red"))),
    ],
)
def test_every_form_of_a_dataset(tmp_path: Path, row: dict[str, Any], expected: tuple[Any, Any]) -> None:
    found = comparisons_of_file(write_rows(tmp_path / "rows.jsonl", [row]), kind="pairs", seed=0)
    assert [(item.prompt, item.completions) for item in found.items] == [expected]


def test_a_csv_file_has_its_list_in_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('prompt,completions\np,"[""a"", ""b"", ""c""]"\n')
    assert len(comparisons_of_file(path, kind="best", seed=0).items[0].completions) == 3


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"prompt": "p", "completion": "one"}, "row 1 has no two completions: expected `completions`"),
        ({"completions": ["a", "b"]}, "row 1 has no 'prompt'"),
        ({"prompt": 3, "completions": ["a", "b"]}, "row 1: prompt is neither a string nor a list"),
        ({"prompt": "p", "completions": ["a"]}, "row 1: completions is not a list of two or more"),
        ({"prompt": "p", "completions": "no json"}, "row 1: completions is not a JSON list"),
        ({"prompt": "p", "completions": ["a", 3]}, "row 1: a completion is neither a string nor one message"),
        ({"prompt": "p", "completions": ["a", MESSAGE]}, "row 1: the completion is a message and the prompt a string"),
        ({"prompt": "p", "completions": ["a", " a"]}, "no row has two different non-empty completions"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path: Path, row: dict[str, Any], line: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises(UserError) as caught:
        comparisons_of_file(path, kind="pairs", seed=0)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_is_shown_with_what_hides_in_it() -> None:
    assert shown_text("a\n\tb") == "a\n\tb"
    assert shown_text("\x1b[31m\u202eevil\x00") == r"\x1b[31m\u202eevil\x00"
    assert shown_text("x" * (LONGEST_SHOWN + 5)).endswith("\n… and 5 more characters")


def test_an_item_is_what_its_name_says_or_none() -> None:
    item = Comparison("p", ("a", "b"))
    record = json.loads(json.dumps(item.record()))
    assert Comparison.of_record(record) == item
    for change in ({"prompt": "q"}, {"completions": ["a"]}, {"completions": "ab"}, {"kind": "other"}, {"prompt": []}):
        assert Comparison.of_record({**record, **change}) is None
