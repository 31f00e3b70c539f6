"""Functions as tools: their schemas, what a function must have, and arguments checked before a call."""

from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from vigneron.environments.tool_schema import WrongArguments, checked_arguments, tool_schema
from vigneron.errors import UserError


def search(
    query: str,
    limit: int = 10,
    tags: Optional[list[str]] = None,  # noqa: UP045  the old notation too
    order: Literal["new", "old"] = "new",
    near: tuple[float, float] | None = None,
    options: dict[str, int] | None = None,
    either: int | str = 0,
    exact: bool = False,
) -> list[str]:
    """Search the archive.

    Args:
        query: What to look for.
        limit: How many to find,
            at most.
        tags: Only with these.
        order: Which come first.
        near: Latitude and longitude.
        options: More.
        either: A number or a name.
        exact: Whether the words must stand so.

    Returns:
        Titles.
    """
    return []


def test_the_schema_of_a_function() -> None:
    schema = tool_schema(search)
    assert schema["type"] == "function"
    function = schema["function"]
    assert (function["name"], function["description"]) == ("search", "Search the archive.")
    assert function["parameters"]["required"] == ["query"]
    assert function["parameters"]["properties"] == {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "description": "How many to find, at most."},
        "tags": {"type": "array", "items": {"type": "string"}, "nullable": True, "description": "Only with these."},
        "order": {"type": "string", "enum": ["new", "old"], "description": "Which come first."},
        "near": {
            "type": "array",
            "prefixItems": [{"type": "number"}, {"type": "number"}],
            "nullable": True,
            "description": "Latitude and longitude.",
        },
        "options": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "nullable": True,
            "description": "More.",
        },
        "either": {"type": ["integer", "string"], "description": "A number or a name."},
        "exact": {"type": "boolean", "description": "Whether the words must stand so."},
    }


def no_docstring(x: int) -> int:
    return x


def undescribed(x: int, y: int) -> int:
    """Add.

    Args:
        x: One.
    """
    return x + y


def no_hint(x) -> int:  # type: ignore[no-untyped-def]
    """Double.

    Args:
        x: A number.
    """
    return 2 * x


def strange(x: Path) -> str:
    """Read.

    Args:
        x: A file.
    """
    return str(x)


def unresolved(x: "Nothing") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Read.

    Args:
        x: A file.
    """
    return ""


def many(*x: int) -> int:
    """Add.

    Args:
        x: Numbers.
    """
    return sum(x)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (no_docstring, "the tool 'no_docstring' has no docstring: say in it what the tool does"),
        (undescribed, "the tool 'undescribed' does not describe its parameter 'y': add"),
        (no_hint, "the tool 'no_hint' has no type hint for its parameter 'x': add one"),
        (strange, "the tool 'strange' has the type Path for its parameter 'x': use int, float"),
        (unresolved, "the tool 'unresolved' has a type hint that cannot be resolved: name 'Nothing'"),
        (many, "the tool 'many' has the parameter '*x: int': a tool is called by keywords"),
    ],
)
def test_what_a_function_lacks_is_one_line(function: Any, line: str) -> None:
    with pytest.raises(UserError) as error:
        tool_schema(function)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_methods_are_tools_without_self() -> None:
    class Counter:
        def add(self, amount: int) -> int:
            """Count on.

            Args:
                amount: By how much.
            """
            return amount

    for method in (Counter.add, Counter().add):
        assert list(tool_schema(method)["function"]["parameters"]["properties"]) == ["amount"]


FITTING: list[dict[str, Any]] = [
    {"query": "x"},
    {"query": "x", "limit": 3, "tags": None, "order": "old", "near": [1, 2.5], "options": {"a": 1}, "exact": True},
    {"query": "", "tags": ["a", "b"], "either": "x"},
    {"query": "x", "either": 3, "options": None},
]


@pytest.mark.parametrize("arguments", FITTING)
def test_arguments_that_fit_are_given_as_they_are(arguments: dict[str, Any]) -> None:
    assert checked_arguments(tool_schema(search), arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "missing argument 'query' of 'search'"),
        ({"query": "x", "limitt": 1}, "unknown argument 'limitt' of 'search' (did you mean 'limit'?)"),
        ({"query": 3}, "argument 'query' of 'search' should be a text, not 3"),
        ({"query": None}, "argument 'query' of 'search' should be a text, not None"),
        ({"query": "x", "limit": "3"}, "should be a whole number, not '3'"),
        ({"query": "x", "limit": 3.0}, "should be a whole number, not 3.0"),
        ({"query": "x", "limit": True}, "should be a whole number, not True"),
        ({"query": "x", "limit": None}, "should be a whole number, not None"),
        ({"query": "x", "exact": 1}, "should be true or false, not 1"),
        ({"query": "x", "tags": "a"}, "should be a list or null, not 'a'"),
        ({"query": "x", "tags": ["a", 1]}, "value 2 of argument 'tags' of 'search' should be a text, not 1"),
        ({"query": "x", "order": "newest"}, "should be one of ['new', 'old'], not 'newest'"),
        ({"query": "x", "near": [1.0]}, "should have 2 values, not 1"),
        ({"query": "x", "near": [1.0, "x"]}, "value 2 of argument 'near'"),
        ({"query": "x", "options": {"a": "b"}}, "'a' in argument 'options' of 'search' should be a whole number"),
        ({"query": "x", "either": 1.5}, "should be a text or a whole number, not 1.5"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(WrongArguments) as error:
        checked_arguments(tool_schema(search), arguments)
    assert line in str(error.value)


def test_values_without_types_are_read_by_the_schema() -> None:
    """Qwen3-Coder and GLM write `75` for the text and for the number."""
    given = {"query": "75", "limit": "75", "tags": '["a"]', "order": "old", "exact": "true", "either": "3"}
    read = checked_arguments(tool_schema(search), given, typed=False)
    assert read == {"query": "75", "limit": 75, "tags": ["a"], "order": "old", "exact": True, "either": "3"}
    assert checked_arguments(tool_schema(search), {"query": "null", "tags": "null"}, typed=False) == {
        "query": "null",
        "tags": None,
    }
    assert checked_arguments(tool_schema(search), {"query": "", "exact": "False"}, typed=False)["exact"] is False
    numbers = {"query": "", "limit": 75, "tags": ["a"]}  # FunctionGemma writes them with a type, or as texts
    assert checked_arguments(tool_schema(search), numbers, typed=False) == numbers
    parts = {"query": "", "tags": ["75"], "near": ["1.5", "-2"], "options": {"a": "3"}}
    read = checked_arguments(tool_schema(search), parts, typed=False)
    assert read == {"query": "", "tags": ["75"], "near": [1.5, -2], "options": {"a": 3}}
    for key, value, line in (
        ("near", ["1.5", "x"], "argument 'near'"),
        ("near", ["1.5"], "should have 2 values, not 1"),
        ("options", {"a": "b"}, "argument 'options'"),
    ):
        with pytest.raises(WrongArguments, match=line):
            checked_arguments(tool_schema(search), {"query": "", key: value}, typed=False)
    for key, text in (("limit", "7x"), ("limit", "7 8"), ("tags", "[1"), ("limit", ""), ("limit", "1e5")):
        with pytest.raises(WrongArguments, match=f"argument '{key}'"):
            checked_arguments(tool_schema(search), {"query": "", key: text}, typed=False)
