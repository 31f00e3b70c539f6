"""Python functions as tools: the JSON schema that chat templates take, and arguments checked against it."""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vigneron.environments.call_syntax import BadCall, Reader, quoted
from vigneron.errors import UserError, did_you_mean, first_line

PLAIN = (int, float, str, bool, list, dict, tuple, type(None), Any)
TYPES = "int, float, str, bool, list[…], dict[str, …], tuple[…], Literal[…], Optional[…] or a union of these"
KINDS: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "string": ("a text", str),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", bool),
    "array": ("a list", list),
    "object": ("an object", dict),
    "null": ("null", type(None)),
}
Schema = dict[str, Any]


class WrongArguments(Exception):
    """A call whose arguments do not fit the tool; the text, which the model reads, says which and why."""


def tool_schema(function: Callable[..., Any]) -> Schema:
    """The schema of a function or method with type hints and a docstring in Google's style, as transformers writes
    it. A `UserError` names the function and what it lacks."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        _check_signature(function)
        from transformers.utils import get_json_schema

        schema: Schema = get_json_schema(function)
    except _Unfit as error:
        raise UserError(f"the tool '{name}' {error}") from None
    except Exception as error:  # the edge to the user's code, and to a library that raises several kinds
        if not inspect.getdoc(function):
            why = "has no docstring: say in it what the tool does, and describe each parameter under `Args:`"
        elif "no description for the argument" in str(error):
            parameter = str(error).rsplit("argument ", 1)[-1]
            why = f"does not describe its parameter {parameter}: add `name: text` under `Args:` in its docstring"
        else:
            why = f"cannot be described for the model: {first_line(error)}"
        raise UserError(f"the tool '{name}' {why}") from error
    return schema


class _Unfit(Exception):
    pass


def _check_signature(function: Callable[..., Any]) -> None:
    """What transformers would turn into a schema that does not fit the function."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise _Unfit(f"has a type hint that cannot be resolved: {first_line(error)}") from None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise _Unfit(f"has the parameter '{parameter}': a tool is called by keywords, which its schema lists")
        if parameter.name not in hints:
            raise _Unfit(f"has no type hint for its parameter '{parameter.name}': add one")
        if not _is_plain(hints[parameter.name]):
            shown = getattr(hints[parameter.name], "__name__", hints[parameter.name])
            raise _Unfit(f"has the type {shown} for its parameter '{parameter.name}': use {TYPES}")


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is None:
        return any(hint is each for each in PLAIN)
    if origin is Literal:
        return True
    return origin in (list, dict, tuple, Union, types.UnionType) and all(_is_plain(part) for part in get_args(hint))


def checked_arguments(schema: Schema, arguments: Mapping[str, Any], typed: bool = True) -> dict[str, Any]:
    """The arguments of a call, if they fit the tool's schema; raises `WrongArguments`. Without types, a text is
    taken as it is where the schema allows one, and as JSON elsewhere."""
    parameters = schema["function"]["parameters"]
    known, required = parameters.get("properties", {}), parameters.get("required", ())
    name = schema["function"]["name"]
    for key in arguments:
        if key not in known:
            otherwise = None if known else "it takes none"
            raise WrongArguments(f"unknown argument {quoted(key)} of '{name}'{did_you_mean(key, known, otherwise)}")
    for key in required:
        if key not in arguments:
            raise WrongArguments(f"missing argument '{key}' of '{name}'")
    values = {key: value if typed else _untyped(value, known[key], key) for key, value in arguments.items()}
    for key, value in values.items():
        _check(value, known[key], f"argument '{key}' of '{name}'")
    return values


def _untyped(value: Any, schema: Schema, key: str) -> Any:
    """With the types that the schema says, also inside lists and objects."""
    if isinstance(value, str):
        return _from_text(value, schema, key)
    if isinstance(value, list) and (inner := _parts_of(schema, len(value))) is not None:
        return [part if own is None else _untyped(part, own, key) for part, own in zip(value, inner, strict=True)]
    if isinstance(value, dict) and isinstance(own := schema.get("additionalProperties"), dict):
        return {name: _untyped(part, own, key) for name, part in value.items()}
    return value


def _parts_of(schema: Schema, count: int) -> list[Schema | None] | None:
    """The schemas of a list's values; None if it should have another number of them."""
    places = schema.get("prefixItems")
    if places is None:
        return [schema.get("items")] * count
    return places if len(places) == count else None


def _from_text(text: str, schema: Schema, key: str) -> Any:
    kinds = _kinds(schema)
    if not kinds:
        kinds = {"string"}
    if "string" in kinds:
        return None if "null" in kinds and text in ("null", "None") else text
    if text in ("True", "False", "None"):  # Qwen's template writes these as Python does
        return {"True": True, "False": False, "None": None}[text]
    reader = Reader(text)
    try:
        value = reader.json("it")
        reader.only_space_left("it")
    except BadCall:
        raise WrongArguments(f"argument '{key}' should be {_shown(kinds)}, not {quoted(text)}") from None
    return value


def _kinds(schema: Schema) -> set[str]:
    """The types that a schema allows; none if it allows every one."""
    given = schema.get("type")
    kinds = {given} if isinstance(given, str) else set(given or ())
    for choice in schema.get("anyOf", ()):
        kinds |= _kinds(choice)
    return kinds | {"null"} if kinds and schema.get("nullable") else kinds


def _check(value: Any, schema: Schema, what: str) -> None:
    if value is None and schema.get("nullable"):
        return
    kinds = _kinds(schema)
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        raise WrongArguments(f"{what} should be {_shown(kinds)}, not {_written(value)}")
    allowed = schema.get("enum")
    if allowed is not None and not any(value == each and type(value) is type(each) for each in allowed):
        raise WrongArguments(f"{what} should be one of {_written(allowed)}, not {_written(value)}")
    choices = schema.get("anyOf")
    if choices:
        _check_choice(value, choices, what)
    if isinstance(value, list):
        _check_list(value, schema, what)
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, part in value.items():
            _check(part, schema["additionalProperties"], f"{quoted(key)} in {what}")


def _check_choice(value: Any, choices: list[Schema], what: str) -> None:
    faults = []
    for choice in choices:
        try:
            return _check(value, choice, what)
        except WrongArguments as fault:
            faults.append(fault)
    raise faults[-1]


def _check_list(value: list[Any], schema: Schema, what: str) -> None:
    inner = _parts_of(schema, len(value))
    if inner is None:
        raise WrongArguments(f"{what} should have {len(schema['prefixItems'])} values, not {len(value)}")
    for at, (part, own) in enumerate(zip(value, inner, strict=True), start=1):
        if own is not None:
            _check(part, own, f"value {at} of {what}")


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, KINDS[kind][1]) if kind in KINDS else False


def _shown(kinds: set[str]) -> str:
    return " or ".join(KINDS[kind][0] for kind in KINDS if kind in kinds)


def _written(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
