"""A schema and an answer cannot take more than a budget of visits, time and memory."""

import json
import time
import tracemalloc
from typing import Any

import pytest

from vigneron.errors import UserError
from vigneron.rewards.graders import json_schema, schema_validator
from vigneron.rewards.graders.json_schema import JsonSchemaGrader
from vigneron.rewards.graders.schema_validator import MAX_VISITS
from vigneron.rubric.model import JsonSchemaItem
from vigneron.sources.verdict import GraderInput, Verdict


def grader(schema: dict[str, Any]) -> JsonSchemaGrader:
    return JsonSchemaGrader(JsonSchemaItem(name="it", description="d", flow="json_schema", json_schema=schema))


def judged(schema: dict[str, Any], answer: Any) -> Verdict:
    return grader(schema).verdict(GraderInput("Q?", answer if isinstance(answer, str) else json.dumps(answer), {}))


def doubled(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """A schema of `levels` definitions that is visited 2^levels times."""

    def twice(level: int) -> Any:
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        return {keyword: {"x": ref, "y": ref} if keyword == "dependentSchemas" else [ref, ref]}

    last = {f"d{levels}": {"type": ["object", "null"]}}
    return {"$defs": {f"d{level}": twice(level) for level in range(levels)} | last, "$ref": "#/$defs/d0"}


def inside(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same for the member `a`, so that only an answer with one is slow."""
    return {"$defs": schema["$defs"], "properties": {"a": {"$ref": schema["$ref"], **more}}}


def test_nested_all_of_is_refused_when_the_rubric_is_read() -> None:
    began = time.process_time()
    with pytest.raises(UserError, match=r"^item 'it', json_schema: takes more than [0-9,]+ steps on the value null"):
        grader(doubled(40))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("keyword", ["allOf", "dependentSchemas"])
def test_a_schema_that_doubles_on_a_small_value_is_refused_when_the_rubric_is_read(
    keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_validator, "MAX_VISITS", 20_000)
    with pytest.raises(UserError, match=r"takes more than 20,000 steps on small values with its own names"):
        grader(inside(doubled(40, keyword)))


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "dependentSchemas"])
@pytest.mark.parametrize("more", [{}, {"unevaluatedProperties": False}])
def test_an_answer_that_exceeds_the_budget_scores_0(
    keyword: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing would be a policy's choice: it ends the comparison with its group."""
    monkeypatch.setattr(json_schema, "_probes", lambda parts: iter(()))
    visits = MAX_VISITS if keyword == "allOf" and more else 20_000
    monkeypatch.setattr(schema_validator, "MAX_VISITS", visits)
    began = time.process_time()
    verdict = judged(inside(doubled(40, keyword), **more), {"a": {"x": 1, "y": 2}})
    if keyword not in ("anyOf", "oneOf") or more:  # their first branch decides
        assert (verdict.score, verdict.why) == (0, None)
        assert f"more than {visits:,} steps" in str(verdict.reasoning)
    assert time.process_time() - began < 10


@pytest.mark.slow
def test_a_long_answer_scores_0() -> None:
    """Of a schema that is cheap on ordinary answers."""
    schema = {"items": {"anyOf": [*({"const": n} for n in range(200)), {}]}}
    assert judged(schema, [-1] * 20).score == 1
    verdict = judged(schema, [-1] * 5_000)
    assert (verdict.score, verdict.why) == (0, None)
    assert "too large for the schema" in str(verdict.reasoning)


def test_unique_items_of_a_long_answer() -> None:
    mixed = [*range(2_500), *map(str, range(2_500))]
    lists = [[n, {"a": n}] for n in range(5_000)]
    began = time.process_time()
    for values in (mixed, lists):
        assert judged({"uniqueItems": True}, values).score == 1
        assert judged({"uniqueItems": True}, [*values, values[7]]).score == 0
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("values", "score"),
    [
        ([1, True], 1),
        ([1, 1.0], 0),
        ([0, False, "0", None, [], {}], 1),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], 0),
        ([[1, [True]], [1, [1]]], 1),
        ([[1, 2], [2, 1]], 1),
        ([{"a": 1}, [["a", 1]]], 1),
    ],
)
def test_unique_items_means_equal_as_json(values: list[Any], score: float) -> None:
    assert judged({"uniqueItems": True}, values).score == score
    assert judged({"type": "array"}, values).score == 1


@pytest.mark.slow
def test_other_costs_count_too() -> None:
    """A long enum for every item, and long messages of errors that are collected."""
    began = time.process_time()
    many = {"items": {"enum": [f"name {n}" for n in range(15_000)]}}
    assert judged(many, ["name 14999"] * 12_000).score == 1
    assert judged({"items": {"required": [f"n{n}" for n in range(5_000)]}}, [{}] * 12_000).score == 0
    assert judged({"enum": [1, "a", [True]]}, [True]).score == 1
    assert judged({"enum": [1, "a", [True]]}, [1]).score == 0
    errors = grader({"properties": {"a": {"anyOf": [{"type": "number"}] * 300}}})
    long = GraderInput("Q?", json.dumps({"a": ["x" * 1_000] * 150}), {})
    tracemalloc.start()
    assert errors.verdict(long).score == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    assert time.process_time() - began < 30
    with pytest.raises(UserError, match="json_schema: has more than 2,000 parts"):
        grader({"properties": {"a": {"anyOf": [{"type": "number"}] * 15_000}}})


def test_another_draft_inside_a_schema_is_still_ours() -> None:
    """`$schema` in a part selects another class of jsonschema, whose patterns have no time limit."""
    slow = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}
    began = time.process_time()
    verdict = judged({"properties": {"a": slow}}, {"a": "a" * 40 + "!"})
    assert verdict.score == 0
    assert time.process_time() - began < 10
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"$ref": "#"}}}
    assert judged({**whole, "pattern": "^(a+)+$"}, {"a": "a" * 40 + "!"}).score == 0
    assert judged(whole, {"a": {"a": 1}}).score == 1


def test_an_ordinary_schema_has_room() -> None:
    person = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"minimum": 0}}}
    people = [{"name": f"p{n}", "n": n} for n in range(5_000)]
    assert judged({"type": "array", "items": person, "uniqueItems": True}, people).score == 1
