"""Rubric files: what is read, and every error at once with its line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vigneron.errors import UserError
from vigneron.rubric.model import Rubric, rubric_schema, rubric_schema_text
from vigneron.rubric.read import example_names, normalised, parse_rubric, read_rubric, rubric_version
from vigneron.rubric.yaml_positions import LARGEST_FILE

ROOT = Path(__file__).parent.parent.parent
LENGTH = {"name": "length", "description": "short", "flow": "length", "at_most": 9}


def rubric_with(*weights: float, **keys: Any) -> dict[str, Any]:
    items = [{**LENGTH, "name": f"i{n}", "weight": w} for n, w in enumerate(weights or (1.0,))]
    return {"categories": {"a": {"items": items}}, **keys}


def errors_of(text: str, *, json: bool = False) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_rubric(text, "r.yaml", json=json)
    return str(caught.value).splitlines()


BROKEN = """\
version: 2
category_colum: kind
categories:
  coding:
    generate: "Answer {{ qestion }}."
    items:
      - name: style
        description: how it looks
        flow: juge
        critique: Look.
      - name: style
        description: again
        flow: judge
        weight: 0
        critique: |
          Look at this:
          {{ response }}
          {{ ''.__class__ }}
      - {name: short, description: d, flow: length, length: 5, weight: -1}
      - name: r
        description: d
        flow: regex
        pattern: "(a"
      - name: nothing
        flow: length
  other:
    items:
      - name: bounds
        description: d
        flow: length
        at_least: 5
        at_most: 3
  third: 5
"""


def test_every_error_of_a_broken_file_comes_at_once_with_its_line() -> None:
    found = {}
    for line in errors_of(BROKEN):
        matched = re.fullmatch(r"r\.yaml, line (\d+): (.*)", line)
        assert matched, line
        found.setdefault(int(matched[1]), []).append(matched[2])
    assert found[2] == ["unknown key 'category_colum' (did you mean 'category_column'?)"]
    assert found[5] == ["categories.coding.generate: unknown name 'qestion' (did you mean 'question'?)"]
    assert found[9][0].startswith("categories.coding.items[0].flow: one of 'judge', 'verify', ")
    assert found[9][0].endswith(", not 'juge' (did you mean 'judge'?)")
    assert found[11] == ["categories.coding.items[1].name: two items are named 'style'"]
    assert found[14] == ["categories.coding.items[1].weight: should be greater than 0, not 0"]
    assert found[18] == [
        "categories.coding.items[1].critique: '__class__' is not allowed: names that begin with `_` are "
        "internal to Python"
    ]
    assert found[19][0] == "categories.coding.items[2].weight: should be greater than 0, not -1"
    assert found[19][1].startswith("unknown key 'categories.coding.items[2].length' (available: name, ")
    assert found[23][0].startswith("categories.coding.items[3].pattern: not a valid regular expression: missing )")
    assert found[24] == ["'categories.coding.items[4].description' is missing"]
    assert found[28] == ["categories.other.items[0]: `at_least` is more than `at_most`"]
    assert found[33] == ["categories.third: should be a mapping of keys to values, not 5"]
    assert sorted(found) == [2, 5, 9, 11, 14, 18, 19, 23, 24, 28, 33]


@pytest.mark.parametrize("indent", [2, "\t"])
def test_errors_in_json_have_their_lines_too(indent: Any) -> None:
    data = rubric_with(1.0, -1.0)
    data["categories"]["a"]["items"][0]["flow"] = "lenght"
    text = json.dumps(data, indent=indent)
    flow, weight = errors_of(text, json=True)
    numbers = [number for number, line in enumerate(text.splitlines(), start=1) if "lenght" in line or "-1.0" in line]
    assert flow.startswith(f"r.yaml, line {numbers[0]}: categories.a.items[0].flow: one of ")
    assert weight == f"r.yaml, line {numbers[1]}: categories.a.items[1].weight: should be greater than 0, not -1.0"


def test_json_texts_are_json_and_not_yaml() -> None:
    """Surrogate pairs, escaped slashes and tabs between tokens."""
    data = rubric_with()
    data["categories"]["a"]["about"] = "grapes 🍇 / vines"
    text = json.dumps(data, indent="\t", ensure_ascii=True).replace("/", "\\/")
    assert "\\ud83c" in text
    assert parse_rubric(text, "r.json", json=True).categories["a"].about == "grapes 🍇 / vines"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "r.yaml, line 1: not valid JSON: "),
        ('{"version": "1",\n "version": "2"}', "r.yaml, line 2: duplicate key 'version', first in line 1"),
        ('{"weight": NaN}', "r.yaml: not valid JSON: NaN is not a JSON number"),
        ("[" * 100_000, "r.yaml: nested too deeply"),
    ],
)
def test_json_that_is_refused(text: str, line: str) -> None:
    assert errors_of(text, json=True)[0].startswith(line)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: !!python/object/apply:os.system ['echo harm']", "line 1: a: '!!python/object/apply:os.system' is not"),
        ("a:\n  b: !!python/name:os.system", "line 2: a.b: '!!python/name:os.system' is not allowed: plain data only"),
        ("a: !mine 5", "line 1: a: '!mine' is not allowed"),
        ("a: !!binary aGk=", "line 1: a: '!!binary' is not allowed"),
        ("a: !!set {x, y}", "line 1: a: '!!set' is not allowed"),
        ("a: 1\nb: 2\na: 3", "line 3: duplicate key 'a', first in line 1"),
        ("a: {x: 1, x: 2}", "line 1: duplicate key 'a.x', first in line 1"),
        ("a: 1\n'a': 2", "line 2: duplicate key 'a', first in line 1"),
        (BOMB, "its aliases expand to too much data"),
        (f"a: &a '{'x' * 1000}'\nb: [{', '.join(['*a'] * 2000)}]", "its aliases expand to too much data"),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: *b", "line 1: not valid YAML: found undefined alias"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "line 3: c: `<<` is not supported: write the keys out"),
        ("? [a, b]\n: 1", "line 1: the rubric: a key must be a string"),
        ("a: 1\nb: \x00", "line 2: not valid YAML: "),
        ("a: [1,\nb: 2", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("[" * 1500, "nested too deeply"),
        ("a: [" + "x, " * 300_000 + "]", "more than 20,000 keys and values"),
        ("", "a rubric must be a mapping of keys to values"),
        ("- a", "a rubric must be a mapping of keys to values"),
        ("x" * (LARGEST_FILE + 1), "larger than 1,000,000 characters"),
    ],
)
def test_yaml_that_is_refused(text: str, what: str) -> None:
    (line,) = errors_of(text)
    assert what in line


def test_every_key_that_stands_twice_is_named() -> None:
    assert [line.partition(":")[0] for line in errors_of("a: 1\na: 2\nb: {c: 1, d: 2,\n  d: 3}\n")] == [
        "r.yaml, line 2",
        "r.yaml, line 4",
    ]


def test_what_a_file_holds_cannot_break_or_colour_the_lines_of_its_errors() -> None:
    (line,) = errors_of(yaml.safe_dump(rubric_with()) + '"a\\nb\\e[2J": 1\n')
    assert "unknown key 'a\\nb\\x1b[2J'" in line


def test_an_alias_may_stand_for_a_prompt() -> None:
    text = """
categories:
  a:
    items:
      - {name: one, description: d, flow: judge, critique: &look "Look closely."}
      - {name: two, description: d, flow: judge, critique: *look}
"""
    assert {item.critique for item in parse_rubric(text, "r").categories["a"].items} == {"Look closely."}


@pytest.mark.parametrize(
    ("written", "read"), [("1", "1"), ("1.10", "1.10"), ("2026-11-02", "2026-11-02"), ("'x'", "x")]
)
def test_a_version_is_a_text_as_it_is_written(written: str, read: str) -> None:
    body = yaml.safe_dump(rubric_with())
    assert parse_rubric(f"version: {written}\n{body}", "r").version == read
    assert parse_rubric(json.dumps({**rubric_with(), "version": 3}), "r", json=True).version == "3"


def test_categories_may_be_named_like_numbers_and_switches() -> None:
    text = yaml.safe_dump(rubric_with())
    for name in ("on", "1", "2026-11-02", "null"):
        assert list(parse_rubric(text.replace("  a:", f"  {name}:"), "r").categories) == [name]


# ---------------------------------------------------------------------------------------------- files


def test_a_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    data = rubric_with(0.25, 0.75)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    (tmp_path / "a.yml").write_text("\ufeff" + yaml.safe_dump(data), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(data), encoding="utf-8")
    assert read_rubric(tmp_path / "a.yaml") == read_rubric(str(tmp_path / "a.yml")) == read_rubric(tmp_path / "a.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "big.yaml").write_text("x" * (4 * LARGEST_FILE + 1))
    for name, what in (
        ("bytes.yaml", "not UTF-8 text"),
        ("folder.yaml", "Is a directory"),
        ("nowhere.yaml", "No such file"),
        ("big.yaml", "larger than"),
    ):
        with pytest.raises(UserError, match=what):
            read_rubric(tmp_path / name)
    with pytest.raises(
        UserError,
        match=r"unknown rubric 'codign' \(did you mean 'coding'\?\); give a bundled name, or a .yaml or .json file",
    ):
        read_rubric("codign")


@pytest.mark.parametrize("name", ["coding", "explanations"])
def test_the_examples_are_valid_and_need_no_normalising(name: str) -> None:
    assert name in example_names()
    rubric = read_rubric(name)
    assert normalised(rubric)[1] == []
    for category in rubric.categories.values():
        assert category.generate
        assert category.revise
        assert {item.flow for item in category.items} > {"judge"}


def test_the_coding_example_has_the_papers_items() -> None:
    items = {item.name: item for item in read_rubric("coding").categories["coding"].items}
    assert list(items) == ["best practices", "valid libraries", "correctness", "completeness", "edge cases"]
    assert items["correctness"].flow == "code"


@pytest.mark.parametrize(
    ("text", "padded", "whole"),
    [
        ("Rain is water that falls from clouds.", False, True),
        ("Great question! Rain is water.", True, True),
        ("Rain is water. I hope this helps!", True, True),
        ("Rain is water that falls from", False, False),
        ("It is “wet.”\n", False, True),
    ],
)
def test_the_explanations_examples_patterns(text: str, padded: bool, whole: bool) -> None:
    items = {item.name: item for item in read_rubric("explanations").categories["explanations"].items}
    assert bool(re.search(items["no padding"].pattern, text)) == padded
    assert bool(re.search(items["whole sentences"].pattern, text)) == whole


# ---------------------------------------------------------------------------------------------- weights and version


def test_weights_are_brought_to_a_sum_of_one_with_a_notice() -> None:
    data = rubric_with(1.0, 3.0)
    data["categories"]["b"] = {"items": [{**LENGTH, "weight": 1}]}
    rubric, notices = normalised(Rubric.model_validate(data))
    assert [item.weight for item in rubric.categories["a"].items] == [0.25, 0.75]
    assert [item.weight for item in rubric.categories["b"].items] == [1.0]
    assert notices == ["the weights of 'a' sum to 4 and are normalised to sum to one"]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_normalised_weights_sum_to_one_keep_their_proportions_and_stay(weights: list[float]) -> None:
    rubric, _ = normalised(Rubric.model_validate(rubric_with(*weights)))
    items = rubric.categories["a"].items
    assert sum(item.weight for item in items) == pytest.approx(1, abs=2e-6)
    for item, weight in zip(items, weights, strict=True):
        assert item.weight / items[0].weight == pytest.approx(weight / weights[0])
    assert normalised(rubric) == (rubric, [])


def test_weights_that_sum_to_one_but_for_rounding_are_left_alone() -> None:
    data = Rubric.model_validate(rubric_with(0.1, 0.2, 0.7000005))
    assert normalised(data) == (data, [])


def test_the_version_shows_an_edit_and_nothing_else() -> None:
    rubric = Rubric.model_validate(rubric_with(1.0, 3.0, version="7"))
    version = rubric_version(rubric)
    assert re.fullmatch("7@[0-9a-f]{8}", version)
    assert rubric_version(normalised(rubric)[0]) == version
    edited = rubric_with(1.0, 3.0, version="7")
    edited["categories"]["a"]["items"][0]["description"] = "shorter"
    assert rubric_version(Rubric.model_validate(edited)) != version
    assert rubric_version(Rubric.model_validate(rubric_with(2.0, 3.0, version="7"))) != version
    written_out = rubric_with(1.0, 3.0, version="7", category_column="category")
    assert rubric_version(Rubric.model_validate(written_out)) == version
    renamed = rubric_version(Rubric.model_validate(rubric_with(1.0, 3.0, version="8")))
    assert renamed == version.replace("7@", "8@")


# ---------------------------------------------------------------------------------------------- the published schema


def test_the_published_schema_is_current() -> None:
    published = (ROOT / "docs" / "reference" / "rubric.schema.json").read_text(encoding="utf-8")
    assert published == rubric_schema_text(), "run: vigneron rubric schema > docs/reference/rubric.schema.json"


def test_the_schema_has_a_title_and_describes_its_keys() -> None:
    schema = rubric_schema()
    assert schema["title"] == "Vigneron rubric"
    assert schema["properties"]["version"]["description"].startswith("Recorded with every score.")
    assert "critique" in schema["$defs"]["JudgeItem"]["properties"]["critique"]["description"]
