"""`flow: json_schema`: the response is JSON that a schema accepts. Remote references are refused; a validation has a
budget of steps and time."""

import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from vigneron.errors import UserError
from vigneron.rewards.graders.checks import REGEX_S, PerSampleGrader
from vigneron.rewards.graders.schema_validator import (
    MAX_PROBE_VISITS,
    OverBudget,
    first_error,
    search,
    validator_class,
)
from vigneron.rubric.model import JsonSchemaItem
from vigneron.sources.verdict import GraderInput, Verdict

MAX_LENGTH = 200_000
MAX_DEPTH = 64
MAX_DIGITS = 400
MAX_PARTS = 2_000
"""Mappings in a schema. Checking one takes half a millisecond."""
PROBED_NAMES = 20
# Keys whose values are data, not schemas.
DATA = ("const", "enum", "default", "examples")


class NotJson(ValueError):
    """Why a response is not JSON."""


class JsonSchemaGrader(PerSampleGrader):
    """1 if the schema accepts, `partial` for JSON that it refuses, else 0."""

    def __init__(self, item: JsonSchemaItem) -> None:
        self._partial = item.partial
        self._validator = _checked_validator(item.json_schema, f"item '{item.name}', json_schema")

    def verdict(self, sample: GraderInput) -> Verdict:
        try:
            value = read_json(sample.response)
        except NotJson as error:
            return Verdict(0.0, reasoning=str(error))
        try:
            refused = first_error(self._validator, value)
        # Not missing: a policy could choose that by a long answer.
        except OverBudget as error:
            return Verdict(0.0, reasoning=f"the response is too large for the schema, which takes {error} on it")
        except TimeoutError:
            return Verdict(0.0, reasoning=f"a pattern of the schema took more than {REGEX_S:g} s on the response")
        except RecursionError:
            return Verdict(0.0, reasoning="the schema recurses too deeply on the response")
        if refused is None:
            return Verdict(1.0, reasoning="the schema accepts the response")
        return Verdict(self._partial, reasoning=f"the schema refuses `{short(refused.json_path)}`: {refused.validator}")


def read_json(text: str) -> Any:
    """The whole text, optionally in a code fence. NaN and numbers out of range of a float are refused."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise NotJson(f"the response is longer than {MAX_LENGTH} characters")
    text = _unfenced(text)
    if _depth(text) > MAX_DEPTH:
        raise NotJson(f"the response is nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(text, parse_float=_finite, parse_int=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise NotJson("the response is not one JSON value and nothing else") from None


def _unfenced(text: str) -> str:
    opening, line_end, rest = text.partition("\n")
    fenced = line_end and opening.rstrip().lower() in ("```", "```json") and rest.endswith("```")
    return rest.removesuffix("```") if fenced else text


def _depth(text: str) -> int:
    """An upper bound: brackets inside strings count too."""
    depth = deepest = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    return deepest


def _finite(number: str) -> float | int:
    if len(number) > MAX_DIGITS or not math.isfinite(float(number)):
        raise ValueError("out of range")
    return float(number) if any(mark in number for mark in ".eE") else int(number)


def _checked_validator(schema: dict[str, Any], where: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    parts = list(islice(_parts(schema), MAX_PARTS + 1))
    if len(parts) > MAX_PARTS:
        raise UserError(f"{where}: has more than {MAX_PARTS:,} parts")
    try:
        json.dumps(schema)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise UserError(f"{where}: {short(error.json_path)}: {short(error.message)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: cannot be written as JSON: {short(error)}") from None
    if any("unevaluatedProperties" in part for part in parts) and any("patternProperties" in part for part in parts):
        raise UserError(
            f"{where}: `unevaluatedProperties` does not work with `patternProperties`: use `additionalProperties`"
        )
    for part in parts:
        for pattern in (part.get("pattern"), *part.get("patternProperties", ())):
            if isinstance(pattern, str):
                search(pattern, where)
    validator = validator_class()(schema, registry=REGISTRY)
    resolver = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    reference: Any = None
    probed = "the value null"
    try:
        for part in parts:
            for reference in (part.get("$ref"), part.get("$dynamicRef")):
                if isinstance(reference, str):
                    resolver.lookup(reference)
        first_error(validator, None, MAX_PROBE_VISITS)
        probed = "small values with its own names"
        for probe in _probes(parts):
            first_error(validator, probe)
    except Unresolvable:
        raise UserError(
            f"{where}: `$ref: {short(reference)}` is not in the schema, and remote schemas are not fetched: "
            "put the definition under `$defs`"
        ) from None
    except OverBudget as error:
        raise UserError(f"{where}: takes {error} on {probed}: write it with fewer references") from None
    except TimeoutError:
        raise UserError(f"{where}: a pattern takes more than {REGEX_S:g} s on {probed}: write a simpler one") from None
    except RecursionError:
        raise UserError(f"{where}: the schema refers to itself without end") from None
    return validator


def _probes(parts: list[dict[str, Any]]) -> Iterator[Any]:
    """Objects in objects, with names that the schema mentions: one that takes its whole budget here is too expensive
    for any answer."""
    keys = ("properties", "dependentSchemas", "dependentRequired")
    named = (name for part in parts for key in keys if isinstance(part.get(key), dict) for name in part[key])
    names = list(islice(dict.fromkeys(named), PROBED_NAMES))
    inner = dict.fromkeys(names)
    outer = dict.fromkeys(names, inner)
    yield from (inner, outer, [outer], {name: [inner] for name in names})


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all its subschemas."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [value for key, value in part.items() if key not in DATA]
        elif isinstance(part, list):
            waiting += part


def short(text: Any) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:500]).split())
    return line[:120] + ("…" if len(line) > 120 else "")
