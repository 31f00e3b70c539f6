"""json_schema: the whole response is JSON that a schema accepts. Nothing is fetched, and no pattern runs for long."""

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from vigneron.errors import UserError
from vigneron.rewards.graders.checks import REGEX_S, EachAlone, compiled
from vigneron.rubric.model import JsonSchemaItem
from vigneron.sources.verdict import Answered, Verdict

LONGEST = 200_000
DEEPEST = 64
LONGEST_NUMBER = 400
# What stands under these is data, and no schema.
DATA = ("const", "enum", "default", "examples")


class NotJson(ValueError):
    """What is wrong with a response, in words."""


class JsonSchema(EachAlone):
    """1 where the schema accepts, `partial` for JSON that it refuses, else 0."""

    def __init__(self, item: JsonSchemaItem) -> None:
        self._partial = item.partial
        self._validator = _checked_validator(item.json_schema, f"item '{item.name}', json_schema")

    def verdict(self, sample: Answered) -> Verdict:
        try:
            value = read_json(sample.response)
        except NotJson as error:
            return Verdict(0.0, reasoning=str(error))
        try:
            refused = next(self._validator.iter_errors(value), None)
        except TimeoutError:
            return Verdict.missing(f"a pattern of the schema took more than {REGEX_S:g} s on this response")
        except RecursionError:
            return Verdict.missing("the schema goes round in circles on this response")
        if refused is None:
            return Verdict(1.0, reasoning="the schema accepts the response")
        return Verdict(self._partial, reasoning=f"the schema refuses `{short(refused.json_path)}`: {refused.validator}")


def read_json(text: str) -> Any:
    """The whole text, in one fence at most. What JSON itself does not know (NaN, numbers beyond a float) is refused."""
    text = text.strip()
    if len(text) > LONGEST:
        raise NotJson(f"the response is longer than {LONGEST} characters")
    text = _unfenced(text)
    if _depth(text) > DEEPEST:
        raise NotJson(f"the response is nested more than {DEEPEST} deep")
    try:
        return json.loads(text, parse_float=_finite, parse_int=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise NotJson("the response is not one JSON value and nothing else") from None


def _unfenced(text: str) -> str:
    opening, line_end, rest = text.partition("\n")
    fenced = line_end and opening.rstrip().lower() in ("```", "```json") and rest.endswith("```")
    return rest.removesuffix("```") if fenced else text


def _depth(text: str) -> int:
    """At most: brackets within texts count too."""
    depth = deepest = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    return deepest


def _finite(number: str) -> float | int:
    if len(number) > LONGEST_NUMBER or not math.isfinite(float(number)):
        raise ValueError("out of range")
    return float(number) if any(mark in number for mark in ".eE") else int(number)


def _checked_validator(schema: dict[str, Any], where: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        json.dumps(schema)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise UserError(f"{where}: {short(error.json_path)}: {short(error.message)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: it cannot be written as JSON: {short(error)}") from None
    parts = list(_parts(schema))
    if any("unevaluatedProperties" in part for part in parts) and any("patternProperties" in part for part in parts):
        raise UserError(f"{where}: `unevaluatedProperties` beside `patternProperties`: use `additionalProperties`")
    for part in parts:
        for pattern in (part.get("pattern"), *part.get("patternProperties", ())):
            if isinstance(pattern, str):
                _search(pattern, where)
    validator = _validator_class()(schema, registry=REGISTRY)
    resolver = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    reference: Any = None
    try:
        for part in parts:
            for reference in (part.get("$ref"), part.get("$dynamicRef")):
                if isinstance(reference, str):
                    resolver.lookup(reference)
        next(validator.iter_errors(None), None)
    except Unresolvable:
        raise UserError(
            f"{where}: `$ref: {short(reference)}` leads out of the schema or nowhere, and nothing is fetched: "
            "put what it means under `$defs`"
        ) from None
    except RecursionError:
        raise UserError(f"{where}: the schema refers to itself without end") from None
    return validator


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas within."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [value for key, value in part.items() if key not in DATA]
        elif isinstance(part, list):
            waiting += part


@cache
def _validator_class() -> Any:
    """Draft 2020-12, its patterns with a time limit."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(validator: Any, wanted: str, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not _search(wanted)(value, timeout=REGEX_S):
            yield ValidationError("does not match the pattern")

    def pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[Any]:
        for wanted, part in patterns.items() if validator.is_type(value, "object") else ():
            for name, found in value.items():
                if _search(wanted)(name, timeout=REGEX_S):
                    yield from validator.descend(found, part, path=name, schema_path=wanted)

    def additional_properties(validator: Any, additional: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        for name, found in value.items() if validator.is_type(value, "object") else ():
            known = name in schema.get("properties", {})
            if not known and not any(_search(wanted)(name, timeout=REGEX_S) for wanted in patterns):
                yield from validator.descend(found, additional, path=name)

    own = {"pattern": pattern, "patternProperties": pattern_properties, "additionalProperties": additional_properties}
    return validators.extend(Draft202012Validator, own)


@cache
def _search(pattern: str, where: str = "json_schema") -> Any:
    return compiled(pattern, where).search


def short(text: Any) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:500]).split())
    return line[:120] + ("…" if len(line) > 120 else "")
