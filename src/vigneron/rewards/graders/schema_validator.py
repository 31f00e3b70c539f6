"""jsonschema's Draft 2020-12 validator within a budget: schemas come with rubrics and answers from models.

Every step of a validation is counted, long messages and lists by their size; patterns have a time limit. The library
alone visits nested `allOf` exponentially often, and compares `uniqueItems` and `enum` pair by pair.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from vigneron.rewards.graders.checks import REGEX_S, compile_pattern

MAX_VISITS = 200_000
"""Steps of one validation: a second or two. A list of 5,000 objects with two members each takes 60,000."""
MAX_PROBE_VISITS = 20_000
"""Steps on `null`, when a rubric is read."""
CPU_SECONDS = 5.0
MESSAGE_CHARACTERS = 50
"""Characters of an error's message that count as one step."""


class OverBudget(Exception):
    """The validation took more than its budget; the message says of what."""


class _Budget:
    def __init__(self, visits: int) -> None:
        self.visits = self.left = visits
        self.deadline = time.thread_time() + CPU_SECONDS  # CPU time, so that a busy machine makes no difference
        self.enums: dict[int, frozenset[Hashable]] = {}
        """Canonical values of each `enum`, by its id in the schema."""

    def spend(self, cost: int = 1) -> None:
        self.left -= cost
        if self.left < 0:
            raise OverBudget(f"more than {self.visits:,} steps")
        if time.thread_time() > self.deadline:
            raise OverBudget(f"more than {CPU_SECONDS:g} s")


_BUDGET: ContextVar[_Budget | None] = ContextVar("_BUDGET", default=None)


def first_error(validator: Any, value: Any, visits: int | None = None) -> Any:
    """The first error of a value, or None. Raises `OverBudget`, and TimeoutError of a pattern."""
    before = _BUDGET.set(_Budget(MAX_VISITS if visits is None else visits))
    try:
        return next(validator.iter_errors(value), None)
    finally:
        _BUDGET.reset(before)


def _spend(cost: int = 1) -> None:
    if (budget := _BUDGET.get()) is not None:
        budget.spend(cost)


def canonical(value: Any) -> Hashable:
    """Equal for values that are equal as JSON: 1 is 1.0, and not true."""
    _spend()
    if isinstance(value, dict):
        return ("object", frozenset((name, canonical(member)) for name, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(canonical(member) for member in value))
    return (type(value).__name__ if isinstance(value, bool | str) or value is None else "number", value)


def _values(enum: list[Any]) -> frozenset[Hashable]:
    """Once per validation: an enum may be tried on every item of a list."""
    budget = _BUDGET.get()
    if budget is not None and id(enum) in budget.enums:
        return budget.enums[id(enum)]
    values = frozenset(canonical(one) for one in enum)
    if budget is not None:
        budget.enums[id(enum)] = values
    return values


@cache
def search(pattern: str, where: str = "json_schema") -> Callable[..., Any]:
    return compile_pattern(pattern, where).search


def _found(pattern: str, text: str) -> bool:
    _spend()
    return search(pattern)(text, timeout=REGEX_S) is not None


Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _counted(name: str, keyword: Keyword) -> Keyword:
    """Counts its entries (names of `required`, members of `properties`) and the messages of its errors."""

    def counted(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        _spend(1 + (len(wanted) if isinstance(wanted, list | dict) and name != "enum" else 0))
        for error in keyword(validator, wanted, value, schema) or ():
            _spend(len(error.message) // MESSAGE_CHARACTERS)  # it quotes the value, at every level
            error.message = ""
            yield error

    return counted


@cache
def validator_class() -> Any:
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(validator: Any, wanted: str, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not _found(wanted, value):
            yield ValidationError("does not match the pattern")

    def pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[Any]:
        for wanted, part in patterns.items() if validator.is_type(value, "object") else ():
            for name, member in value.items():
                if _found(wanted, name):
                    yield from validator.descend(member, part, path=name, schema_path=wanted)

    def additional_properties(validator: Any, additional: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        for name, member in value.items() if validator.is_type(value, "object") else ():
            known = name in schema.get("properties", {})
            if not known and not any(_found(wanted, name) for wanted in patterns):
                yield from validator.descend(member, additional, path=name)

    def unique_items(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterator[Any]:
        if wanted and validator.is_type(value, "array") and len({canonical(item) for item in value}) < len(value):
            yield ValidationError("has equal items")

    def enum(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if canonical(value) not in _values(wanted):
            yield ValidationError("is not one of the enum")

    def const(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if canonical(value) != canonical(wanted):
            yield ValidationError("is not the const")

    def evolve(validator: Any, **changes: Any) -> Any:
        """Of this class, whatever the part's `$schema` is."""
        _spend()
        kept = {"schema": validator.schema, "_resolver": validator._resolver}
        return made(**{**kept, **changes})

    own: dict[str, Keyword] = {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
        "enum": enum,
        "const": const,
    }
    every = {name: _counted(name, function) for name, function in {**Draft202012Validator.VALIDATORS, **own}.items()}
    made: Any = validators.extend(Draft202012Validator, every)
    made.evolve = evolve
    return made
