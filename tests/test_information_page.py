"""Every number on docs/reference/information-theory.md equals its expression, and none is outside a table or code."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "information-theory.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| ([^|]+) \|$", PAGE, flags=re.M)
# Text with a digit that is not a number to check: sections, equations, the lemma, the estimators and k3's formula.
NAMES = r"§8(\.\d)?(-8\.\d)?|eq\. \d+|Lemma 8\.1|\bk[123]\b|q/p − 1 −"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, found)
    return found


def test_no_row_of_a_table_is_skipped() -> None:
    tables = [line for line in PAGE.splitlines() if line.startswith("|")]
    headings = [line for line in tables if line in ("| what | expression | value |", "|---|---|---|")]
    assert len(tables) == len(headings) + len(ROWS) > 30


@pytest.mark.parametrize(("what", "expression", "shown"), ROWS)
def test_a_row_equals_its_expression(names: dict[str, Any], what: str, expression: str, shown: str) -> None:
    value = eval(expression, names)
    wanted = shown.split(", ")
    got = value.detach().flatten().tolist()
    assert len(got) == len(wanted), what
    for number, text in zip(got, wanted, strict=True):
        digits = re.fullmatch(r"-?\d+(?:\.(\d+))?(e-\d+)?", text)
        assert digits, text
        unit = float(f"1{digits[2] or ''}") * 10.0 ** -len(digits[1] or "")
        assert number == pytest.approx(float(text), abs=0.5000001 * unit if "." in text or digits[2] else 1e-9), what
    assert value.dtype == torch.float64 or expression.startswith("torch.tensor")


def test_the_text_has_no_unchecked_number() -> None:
    text = re.sub(r"```python\n.*?```", "", PAGE, flags=re.S)
    text = re.sub(r"`[^`]+` \| [^|]+ \|$", "", text, flags=re.M)
    assert re.findall(r"[^\n]*\d[^\n]*", re.sub(NAMES, "", text)) == []
