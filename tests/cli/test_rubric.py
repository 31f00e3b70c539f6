"""`vigneron rubric …`, as a user sees it."""

import json
import re
from pathlib import Path

import pytest

from support.command_line import vigneron, write_jsonl

RUBRIC = """\
version: 3
categories:
  words:
    items:
      - {name: same, description: the same word, flow: string_check, weight: 3}
      - {name: short, description: a short one, flow: length, at_most: 2}
"""


@pytest.fixture
def rubric(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RUBRIC, encoding="utf-8")
    return path


def test_validate_prints_items_flows_weights_notices_and_the_version(rubric: Path) -> None:
    answer = vigneron("rubric", "validate", rubric)
    assert answer.code == 0, answer.err
    assert re.search(r"words +same +string_check +0\.75", answer.out)
    assert re.search(r"\n +short +length +0\.25", answer.out)
    assert "note: the weights of 'words' sum to 4" in answer.out
    assert re.search(r"mine\.yaml is valid: version 3@[0-9a-f]{8}\n$", answer.out)


@pytest.mark.parametrize("name", ["coding", "explanations"])
def test_the_examples_go_by_their_names(name: str) -> None:
    answer = vigneron("rubric", "validate", name)
    assert answer.code == 0, answer.err
    assert f"{name} is valid: version 1@" in answer.out
    assert "note:" not in answer.out


def test_every_error_of_a_broken_file_is_printed_with_its_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(RUBRIC.replace("weight: 3", "wieght: 3").replace("at_most: 2", "at_most: 0"), encoding="utf-8")
    answer = vigneron("rubric", "validate", broken)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.splitlines() == [
        f"error: {broken}, line 5: unknown key 'categories.words.items[0].wieght' (did you mean 'weight'?)",
        f"error: {broken}, line 6: categories.words.items[1].at_most: should be greater than 0, not 0",
    ]


def test_rows_are_checked_too(tmp_path: Path, rubric: Path) -> None:
    good = write_jsonl(tmp_path / "good.jsonl", ['{"prompt": "a", "category": "words", "answer": "b"}'] * 2)
    answer = vigneron("rubric", "validate", rubric, "--data", good)
    assert answer.code == 0, answer.err
    assert "good.jsonl: 2 rows, all with a category and the required columns" in answer.out
    bad = write_jsonl(tmp_path / "bad.jsonl", ['{"category": "words", "answer": "b"}', '{"category": "wrods"}'])
    answer = vigneron("rubric", "validate", rubric, "--data", bad)
    assert answer.code == 2
    assert answer.err == (f"error: data: '{bad}', row 2: the rubric has no category 'wrods' (did you mean 'words'?)\n")


def test_an_unknown_name_is_one_line() -> None:
    answer = vigneron("rubric", "validate", "codding")
    assert answer.code == 2
    assert (
        answer.err
        == "error: unknown rubric 'codding' (did you mean 'coding'?); give a bundled name, or a .yaml or .json file\n"
    )


def test_the_schema_is_json() -> None:
    answer = vigneron("rubric", "schema")
    assert answer.code == 0
    assert json.loads(answer.out)["title"] == "Vigneron rubric"
