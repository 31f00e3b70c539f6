"""Names of categories and items in any script: in metrics, the report and the command line."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import vigneron, write_jsonl
from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.report.html import write_report
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import parse_rubric

LENGTH = {"name": "Größe", "description": "short", "flow": "length", "at_most": 9}
VOWEL = {"name": "दिल्ली 2", "description": "a vowel", "flow": "regex", "pattern": "[aeiou]"}
RUBRIC = {"categories": {"数学": {"items": [LENGTH, VOWEL]}, "प्रश्न": {"items": [LENGTH]}}}


def test_names_of_any_script_in_a_run_its_report_and_the_command_line(tmp_path: Path, tiny_folder: Path) -> None:
    file = tmp_path / "rubric.yaml"
    file.write_text(yaml.safe_dump(RUBRIC, sort_keys=False, allow_unicode=True), encoding="utf-8")
    rows = [{"prompt": f"say {i}: ", "answer": "a", "category": ("数学", "प्रश्न")[i % 2]} for i in range(4)]
    data = write_jsonl(tmp_path / "rows.jsonl", [json.dumps(row, ensure_ascii=False) for row in rows])
    given = {
        "method": {"name": "grpo"},
        "model": {"name": str(tiny_folder), "device": "cpu"},
        "data": {"train": str(data)},
        "reward": {"kind": "rubric", "file": str(file)},
        **{"steps": 2, "prompts_per_step": 4, "group_size": 2, "max_new_tokens": 4, "save_every": 0},
    }
    run = api.train(check_config(given, "names"), name="names", runs=tmp_path / "runs").folder
    logged = {name for line in (run / "metrics.jsonl").read_text("utf-8").splitlines() for name in json.loads(line)}
    assert {"reward/数学/Größe/score", "reward/数学/दिल्ली 2/score", "reward/प्रश्न/Größe/score"} <= logged
    report = write_report([run]).read_text(encoding="utf-8")
    assert all(name in report for name in ("数学", "Größe", "दिल्ली 2", "प्रश्न"))
    for command in (("show", run), ("rubric", "review", run), ("rubric", "validate", file)):
        answer = vigneron(*command)
        assert answer.code == 0, answer.err
        assert "数学" in answer.out or command[0] == "show"


def named(name: str) -> Rubric:
    return parse_rubric(json.dumps({"categories": {name: {"items": [{**LENGTH, "name": name}]}}}), "r", json=True)


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a/b", "a\nb", "_a", "-", "a:b", "\u0301a", "a\u202eb", "a" * 61, "👍"]
)
def test_names_that_no_metric_can_have(name: str) -> None:
    with pytest.raises(UserError):
        named(name)


def test_the_rule_is_told_in_words() -> None:
    with pytest.raises(UserError, match=r"a name has letters and digits of any script, spaces, `_`, `\.` and `-`"):
        named("a/b")


@given(st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=60))
def test_letters_and_digits_of_every_script_are_names(name: str) -> None:
    assert list(named(name).categories) == [name]
