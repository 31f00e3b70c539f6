"""What the parsers of tool calls share: their results, strict JSON, and reading a text from the left.

All of it is linear in the text's length. A fault is a `BadCall`, whose text the model reads.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vigneron.errors import visible
from vigneron.files import parse_int

MAX_DEPTH = 32
"""Of lists and objects within arguments: templates write them recursively."""
MAX_NAME = 200
QUOTED = 40


class BadCall(Exception):
    """A turn that calls a tool, but not in the template's format; the text says what is wrong, in one line."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    """None where the format has none."""
    typed: bool = True
    """Whether the values have their types. If not, texts may be other values, as only the tool's schema knows."""


@dataclass(frozen=True)
class ParsedTurn:
    text: str
    """What stands beside the calls; all of the turn if there are none."""
    calls: tuple[Call, ...] = ()
    thinking: str | None = None
    """Of formats that write reasoning in a channel of its own."""


class Reader:
    """A text, read from the left."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def skip_space(self) -> None:
        # Not by a pattern or lstrip, which copies the rest of the text.
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def at_end(self) -> bool:
        self.skip_space()
        return self.at >= len(self.text)

    def starts(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Whether the mark stands here; if so, go behind it."""
        is_here = self.starts(mark)
        if is_here:
            self.at += len(mark)
        return is_here

    def expect(self, mark: str, after: str) -> None:
        if not self.take(mark):
            raise BadCall(f"expected {mark!r} after {after}, not {self.rest()}")

    def until(self, mark: str, what: str) -> str:
        """The text up to the mark; go behind the mark."""
        end = self.text.find(mark, self.at)
        if end < 0:
            raise BadCall(f"{what} is not closed by {mark!r}")
        text, self.at = self.text[self.at : end], end + len(mark)
        return text

    def json(self, what: str) -> Any:
        """The JSON value that begins here, after space."""
        self.skip_space()
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except RecursionError:
            raise BadCall(f"{what} is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise BadCall(f"{what} is not valid JSON: {error.msg} at {quoted(error.doc[error.pos :])}") from None
        except ValueError as error:
            raise BadCall(f"{what} is not valid JSON: {error}") from None
        return checked_value(value, what)

    def rest(self) -> str:
        return quoted(self.text[self.at : self.at + 2 * QUOTED])

    def only_space_left(self, after: str) -> None:
        if not self.at_end():
            raise BadCall(f"text after {after}: {self.rest()}")


def quoted(text: str) -> str:
    """The beginning of a text, for a message."""
    if not text.strip():
        return "the end"
    return f"'{visible(text[:QUOTED])}{'…' if len(text) > QUOTED else ''}'"


def checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadCall("a call needs a `name`, which is a text")
    if len(name) > MAX_NAME or not name.isprintable():
        raise BadCall(f"{quoted(name)} is no name of a tool")
    return name


def call_of(value: Any, arguments: str = "arguments", others: Iterable[str] = ()) -> Call:
    """The call that a JSON object describes: `name`, its arguments under the given key, and no keys but `others`."""
    if not isinstance(value, dict):
        raise BadCall(f"a call should be a JSON object with `name` and `{arguments}`, not {_kind(value)}")
    for key in value:
        if key not in ("name", arguments, *others):
            raise BadCall(f"unknown key {quoted(key)} in a call: it has `name` and `{arguments}`")
    name = checked_name(value.get("name"))
    if arguments not in value:
        raise BadCall(f"the call of '{name}' has no `{arguments}`")
    identity = value.get("id")
    if identity is not None and (not isinstance(identity, str) or not identity or len(identity) > MAX_NAME):
        raise BadCall(f"the `id` of the call of '{name}' should be a text")
    return Call(name, checked_object(value[arguments], name), identity)


def calls_of(value: Any, others: Iterable[str] = ()) -> tuple[Call, ...]:
    """The calls of a JSON list."""
    if not isinstance(value, list) or not value:
        raise BadCall(f"calls should be a JSON list of objects, not {_kind(value)}")
    return tuple(call_of(each, others=others) for each in value)


def checked_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadCall(f"the arguments of '{name}' should be a JSON object, not {_kind(value)}")
    return value


def checked_value(value: Any, what: str) -> Any:
    """Refuses what cannot be written again: too many levels, or half of a character (a lone surrogate)."""
    level = [value]
    for _ in range(MAX_DEPTH):
        texts = [each for each in level if isinstance(each, str)]
        texts += [key for each in level if isinstance(each, dict) for key in each]
        if not all(_is_text(text) for text in texts):
            raise BadCall(f"{what} has half of a surrogate pair, which is no character")
        level = [part for each in level if isinstance(each, list | dict) for part in _parts(each)]
        if not level:
            return value
    raise BadCall(f"{what} is nested more than {MAX_DEPTH} levels deep")


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number") if value or not isinstance(value, list) else "an empty list"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return by_key


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text[:QUOTED]} is too large")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(
    parse_int=parse_int, parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_without_duplicates
)
