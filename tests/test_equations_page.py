"""docs/reference/equations.md is complete and points at what exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "equations.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`\n]+)`", PAGE)
CODE = sorted({span for span in SPANS if re.match(r"[\w/]+\.py(: |$)", span) and not span.startswith("tests/")})
TESTS = sorted({span for span in SPANS if span.startswith("tests/")})
NOT_YET = "not written yet"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def has(scope: ast.AST, name: str) -> bool:
    """Whether `build.loss` is a function inside a function, or `Player.step` a method."""
    first, _, rest = name.partition(".")
    here = [
        node
        for node in ast.iter_child_nodes(scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == first
    ]
    return any(not rest or has(node, rest) for node in here)


def rows(heading: str) -> list[list[str]]:
    """The cells of the section's table, its heading and rule left out."""
    section = re.split(r"^## ", PAGE, flags=re.M)
    (text,) = [part for part in section if part.startswith(heading)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


INDEXES = ["rlmt-grape, by number", "rlmt-grape, without a number", "pgsrm", "Algorithm 1"]


def test_every_numbered_equation_and_every_line_has_its_row() -> None:
    assert [int(cells[0]) for cells in rows("rlmt-grape, by number")] == list(range(1, 19))
    assert [int(cells[0]) for cells in rows("Algorithm 1")] == list(range(1, 21))
    sections = {number for cells in rows("rlmt-grape, without a number") for number in cells[0].split(", ")}
    assert sections >= {"2", "3", "4.1", "4.4", "4.6", "4.7", "4.9", "6.1", "8.1", "8.2", "8.3", "8.4", "8.5", "8.7"}
    assert {cells[0] for cells in rows("pgsrm")} >= {"3.1", "3.2", "3.3", "4.3"}


@pytest.mark.parametrize("heading", INDEXES)
def test_every_row_names_code_and_a_test_or_says_that_there_is_none(heading: str) -> None:
    for cells in rows(heading):
        assert len(cells) == 4, cells
        _, what, code, test = cells
        if what == "blank in the paper" or code == NOT_YET:
            assert test == "–", cells
            continue
        assert any(f"`{span}`" in code for span in CODE), cells
        assert any(f"`{span}`" in test for span in TESTS), cells


def test_no_file_is_named_in_another_form() -> None:
    assert [span for span in SPANS if ".py" in span and span not in CODE and span not in TESTS] == []


@pytest.mark.parametrize("entry", CODE)
def test_the_code_is_there(entry: str) -> None:
    name, _, parts = entry.partition(": ")
    path = ROOT / "src" / "vigneron" / name
    assert path.is_file(), entry
    for part in filter(None, parts.split(", ")):
        assert has(tree(path), part), f"{name} has no {part}"


@pytest.mark.parametrize("entry", TESTS)
def test_the_test_is_there(entry: str) -> None:
    name, _, test = entry.partition("::")
    assert (ROOT / name).is_file(), entry
    assert not test or has(tree(ROOT / name), test), entry
