"""A rubric and its rows: categories and columns, named by the row's number."""

from typing import Any

import pytest

from vigneron.errors import UserError
from vigneron.rubric.model import Rubric
from vigneron.rubric.rows import category_of, check_rubric_rows

RUBRIC = Rubric.model_validate(
    {
        "category_column": "kind",
        "categories": {
            "maths": {"items": [{"name": "right", "description": "d", "flow": "verify", "truth": "solution"}]},
            "coding": {
                "items": [
                    {"name": "runs", "description": "d", "flow": "code"},
                    {
                        "name": "style",
                        "description": "d",
                        "flow": "judge",
                        "critique": "{{ row.language }} {% if row.hint is defined %}{{ row.hint }}{% endif %}",
                    },
                ]
            },
            "words": {"items": [{"name": "same", "description": "d", "flow": "string_check"}]},
        },
    }
)
ONE = Rubric.model_validate(
    {"categories": {"words": {"items": [{"name": "n", "description": "d", "flow": "length", "at_most": 3}]}}}
)
MATHS = {"kind": "maths", "solution": "4"}
CODING = {"kind": "coding", "tests": ["assert f() == 1"], "language": ""}
WORDS = {"kind": "words", "answer": "big"}


def test_a_rows_category_is_its_columns_value() -> None:
    assert [category_of(RUBRIC, row, 1, "x") for row in (MATHS, CODING, WORDS)] == ["maths", "coding", "words"]
    assert category_of(ONE.model_copy(update={"category_column": None}), {}, 1, "x") == "words"
    assert category_of(ONE, {"prompt": "a"}, 1, "x") == "words"  # its only category needs no column


@pytest.mark.parametrize(
    ("rubric", "row", "line"),
    [
        (RUBRIC, {"kind": "math"}, "row 7: the rubric has no category 'math' (did you mean 'maths'?)"),
        (RUBRIC, {"kind": 5}, "row 7: the rubric has no category '5' (available: maths, coding, words)"),
        (RUBRIC, {"kinds": "maths"}, "row 7 has no 'kind' (did you mean 'kinds'?): set its category there"),
        (RUBRIC, {"kind": None}, "row 7 has no 'kind': set its category there"),
        (RUBRIC, {}, "row 7 has no 'kind': set its category there"),
        (ONE, {"category": "word"}, "row 7: the rubric has no category 'word' (did you mean 'words'?)"),
    ],
)
def test_a_row_without_a_known_category_is_named(rubric: Rubric, row: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        category_of(rubric, row, 7, "'rows.jsonl'")
    assert str(caught.value) == f"data: 'rows.jsonl', {line}"


def test_rows_with_all_they_need_pass() -> None:
    check_rubric_rows(RUBRIC, [MATHS, CODING, WORDS, {**CODING, "tests": "assert True"}], "x")


def test_every_bad_row_is_named_with_what_it_lacks() -> None:
    rows = [
        MATHS,
        {"kind": "maths", "solutoin": "4"},
        {**CODING, "tests": []},
        {**CODING, "language": None},
        {**CODING, "tests": ["assert True", 5]},
        {**CODING, "tests": {"a": 1}},
        {"kind": "words", "answer": ""},
        {"kind": "wrods"},
    ]
    with pytest.raises(UserError) as caught:
        check_rubric_rows(RUBRIC, rows, "x")
    assert str(caught.value).splitlines() == [
        "data: x, row 2 has no 'solution' (did you mean 'solutoin'?), which maths.right: truth needs",
        "data: x, row 3 has no 'tests', which coding.runs: tests needs",
        "data: x, row 4 has no 'language', which coding.style: critique needs",
        "data: x, row 5: 'tests' is neither a string nor a list of strings",
        "data: x, row 6: 'tests' is neither a string nor a list of strings",
        "data: x, row 7 has no 'answer', which words.same: reference needs",
        "data: x, row 8: the rubric has no category 'wrods' (did you mean 'words'?)",
    ]


def test_of_many_bad_rows_the_first_are_named_and_the_rest_counted() -> None:
    with pytest.raises(UserError) as caught:
        check_rubric_rows(RUBRIC, [{"kind": "x"}] * 25, "x")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "data: x: 15 more such rows"
    with pytest.raises(UserError, match="x has no rows"):
        check_rubric_rows(RUBRIC, [], "x")
