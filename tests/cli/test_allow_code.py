"""A rubric is data: its `flow: python` runs a function only with `--allow-code`."""

import json
from pathlib import Path

import pytest

from support.command_line import vigneron, write_jsonl
from vigneron.errors import UserError
from vigneron.rubric.code_items import check_code_allowed

MARKER = "imported.txt"
RUBRIC = """\
category_column: null
categories:
  words:
    items:
      - {name: short, description: d, flow: length, at_most: 5}
"""
CODE = "      - {name: own, description: d, flow: python, function: 'hostile_functions:score'}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a rubric that writes a file when its function is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        f"open({str(tmp_path / MARKER)!r}, 'w').close()\ndef score(completions, **_): return [0.5] * len(completions)\n"
    )
    (tmp_path / "hostile_functions.py").write_text(source, encoding="utf-8")
    (tmp_path / "rubric.yaml").write_text(RUBRIC + CODE, encoding="utf-8")
    (tmp_path / "plain.yaml").write_text(RUBRIC, encoding="utf-8")
    write_jsonl(tmp_path / "rows.jsonl", [json.dumps({"prompt": "a", "completion": "b"})])
    for name in ("rubric", "plain"):
        recipe = "method: {name: grape}\ngroup_size: 4\ndata: {train: rows.jsonl}\n"
        recipe += f"reward: {{kind: rubric, file: {name}.yaml}}\n"
        (tmp_path / f"{name}-recipe.yaml").write_text(recipe, encoding="utf-8")
    return tmp_path


COMMANDS = {
    "try": ("rubric", "try", "{}.yaml", "rows.jsonl"),
    "validate": ("validate", "{}-recipe.yaml"),
    "train": ("train", "{}-recipe.yaml", "steps=1"),
    "sample": ("sample", "{}-recipe.yaml"),
    "compare": ("compare", "{}-recipe.yaml", "--seeds", "2"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_code_of_a_rubric_needs_the_flag(here: Path, name: str) -> None:
    answer = vigneron(*(word.format("rubric") for word in COMMANDS[name]))
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.endswith(
        "rubric.yaml' runs code: 'words.own' calls the Python function 'hostile_functions:score' (flow: python). "
        "Read it, then add --allow-code"
    )
    assert not (here / MARKER).exists()
    useless = vigneron(*(word.format("plain") for word in COMMANDS[name]), "--allow-code")
    assert useless.err == "error: --allow-code has no effect: there is no rubric with an item of `flow: python`\n"


def test_with_the_flag_the_function_scores(here: Path) -> None:
    answer = vigneron("rubric", "try", "rubric.yaml", "rows.jsonl", "--allow-code")
    assert answer.code == 0, answer.err
    assert "0.50" in answer.out
    assert (here / MARKER).exists()
    assert vigneron("rubric", "try", "plain.yaml", "rows.jsonl").code == 0
    assert vigneron("rubric", "validate", "rubric.yaml").code == 0  # reads the file, and imports nothing


def test_another_rubric_on_resume_needs_it_too(here: Path) -> None:
    with pytest.raises(UserError, match="runs code"):
        check_code_allowed(["plain.yaml", "rubric.yaml"], allowed=False)
    check_code_allowed(["plain.yaml", "rubric.yaml"], allowed=True)
