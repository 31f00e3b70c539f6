"""Numbers and nulls of tables as texts: a whole number has no `.0`, and nothing is not the word None."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import write_jsonl
from vigneron.data.prompts import completion_text, filled
from vigneron.recipe import check_config
from vigneron.run_data.load import load_data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42.0, "42"),
        (-7.0, "-7"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (1e20, "1e+20"),
        (42, "42"),
        (True, "True"),
        ("1.0", "1.0"),
    ],
)
def test_a_number_is_written_without_an_empty_fraction(value: Any, text: str) -> None:
    assert completion_text(value) == text
    assert filled("{x}!", {"x": value}) == f"{text}!"


def test_a_template_with_formats_and_parts_and_nulls() -> None:
    row = {"x": 2.0, "none": None, "parts": [{"y": 3.0, "z": None}], "text": "{x}"}
    assert filled("{x:.2f} {x!r} [{none}] [{none:>4}] {parts[0][y]} [{parts[0][z]}] {text}", row) == (
        "2.00 2.0 [] [] 3 [] {x}"
    )


def test_a_null_of_a_template_is_an_empty_text(tmp_path: Path) -> None:
    rows = [{"instruction": "Bye", "input": given, "output": "bye"} for given in (None, "now")]
    path = write_jsonl(tmp_path / "alpaca.jsonl", map(json.dumps, rows))
    data = {"train": str(path), "template": "{instruction}: {input}", "columns": {"answer": "output"}}
    train = load_data(check_config({"method": {"name": "sft"}, "data": data}, "my.yaml")).train
    assert [row["prompt"] for row in train] == ["Bye: ", "Bye: now"]
