"""Plain data as strict JSON. Values of other types are left to the caller, by two hooks.

None, bools, strings and small ints are themselves; anything else is a list of its kind and its parts. A float in the
JSON, `1e999` for example, is refused: floats are sent in hexadecimal.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import delays the start of every sandbox by milliseconds
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 100
SMALL = 2**53


class NotPlain(Exception):
    """A value is not plain data, or a message is not in the format."""


PARTS: dict[type, Callable[[Any, Callable[[Any], Any]], list[Any]]] = {
    float: lambda v, _: ["float", float.hex(v)],
    complex: lambda v, _: ["complex", float.hex(v.real), float.hex(v.imag)],
    bytes: lambda v, _: ["bytes", bytes.hex(v)],
    bytearray: lambda v, _: ["bytearray", bytearray.hex(v)],
    list: lambda v, e: ["list", *map(e, list.__iter__(v))],
    tuple: lambda v, e: ["tuple", *map(e, tuple.__iter__(v))],
    set: lambda v, e: ["set", *map(e, set.__iter__(v))],
    frozenset: lambda v, e: ["frozenset", *map(e, frozenset.__iter__(v))],
    dict: lambda v, e: ["dict", *([e(key), e(part)] for key, part in dict.items(v))],
    range: lambda v, e: ["range", e(v.start), e(v.stop), e(v.step)],
    slice: lambda v, e: ["slice", e(v.start), e(v.stop), e(v.step)],
}
"""Of subclasses only the data of the first base here is sent: their own operators have no effect."""
LIBRARY: dict[str, tuple[str, Callable[[Any], list[Any]], str]] = {
    "Counter": ("collections", lambda v: [dict(v)], "__call__"),
    "OrderedDict": ("collections", lambda v: [dict(v)], "__call__"),
    "deque": ("collections", lambda v: [list(v)], "__call__"),
    "Decimal": ("decimal", lambda v: [str(v)], "__call__"),
    "Fraction": ("fractions", lambda v: [v.numerator, v.denominator], "__call__"),
    "datetime": ("datetime", lambda v: [v.isoformat()], "fromisoformat"),
    "date": ("datetime", lambda v: [v.isoformat()], "fromisoformat"),
    "time": ("datetime", lambda v: [v.isoformat()], "fromisoformat"),
    "timedelta": ("datetime", lambda v: [v.days, v.seconds, v.microseconds], "__call__"),
}
"""Types of modules that are imported when needed: the module, the parts of a value, and what builds it from them."""
BASES = (str, int, *PARTS)
PLAIN_CLASSES = {t.__name__: t for t in (*BASES, bool, object, type)}

BUILD: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
}
READ: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}


def encode(value: Any, other: Callable[[Any, int], Any], depth: int = 0) -> Any:
    """`other` encodes a value of any other type; it gets the depth."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["int", hex(value)]
    if depth > MAX_DEPTH:
        raise NotPlain("nested too deeply")
    if kind in PARTS:
        return PARTS[kind](value, lambda part: encode(part, other, depth + 1))
    if (found := LIBRARY.get(kind.__name__)) is not None and kind.__module__ == found[0]:
        return [kind.__name__, *(encode(part, other, depth + 1) for part in found[1](value))]
    return other(value, depth + 1)


def base_of(value: Any) -> type | None:
    """The plain type that the type of the value inherits from."""
    return next((base for base in BASES if base in type(value).__mro__[1:]), None)


def encode_base(value: Any, base: type, other: Callable[[Any, int], Any], depth: int) -> Any:
    if base is str:
        return str.__str__(value)
    if base is int:
        return encode(int.__add__(value, 0), other, depth)
    return PARTS[base](value, lambda part: encode(part, other, depth + 1))


def decode(data: Any, other: Callable[[str, list[Any]], Any], depth: int = 0) -> Any:
    """`other` decodes any other kind. Raises `NotPlain`."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is not list or not data or type(data[0]) is not str or depth > MAX_DEPTH + 10:
        raise NotPlain("a message is not in the format")
    kind, *parts = data
    try:
        if kind in READ:
            (text,) = parts
            return READ[kind](text)
        if kind == "complex":
            return complex(*map(float.fromhex, parts))
        if kind in BUILD:
            return BUILD[kind]([decode(part, other, depth + 1) for part in parts])
        if kind in LIBRARY:
            module, _, build = LIBRARY[kind]
            __import__(module)
            made = getattr(getattr(sys.modules[module], kind), build)
            return made(*(decode(part, other, depth + 1) for part in parts))
        if kind == "dict":
            return {decode(key, other, depth + 1): decode(part, other, depth + 1) for key, part in parts}
    except NotPlain:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise NotPlain("a message is not in the format") from error
    return other(kind, parts)


def _refused(text: str) -> Any:
    raise NotPlain("a number in a message is not in the format")


class _Strict:
    """The settings of the C scanner behind `json.loads`, whose package takes longer to import than Python to start."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, {}  # type: ignore[var-annotated]
    parse_float, parse_constant, parse_int = staticmethod(_refused), staticmethod(_refused), int


def _codec() -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    try:
        import _json

        c: Any = _json
        scan = c.make_scanner(_Strict)
        encoder = c.make_encoder(None, None, c.encode_basestring_ascii, None, ": ", ", ", False, False, False)

        def read(text: str) -> Any:
            try:
                value, end = scan(text, 0)
            except StopIteration:
                raise ValueError("no JSON") from None
            if end != len(text):
                raise ValueError("no JSON")
            return value

        def write(value: Any) -> str:
            return "".join(encoder(value, 0))

        sample = ["a", {"b": [1, None, True]}]
        if read(write(sample)) == sample:
            return read, write
    except (ImportError, TypeError, AttributeError):  # another Python's C module
        pass
    import json

    return (lambda text: json.loads(text, parse_float=_refused, parse_constant=_refused)), json.dumps


_read, _write = _codec()


def dumps(message: Any) -> bytes:
    return _write(message).encode() + b"\n"


def loads(line: bytes) -> Any:
    """Raises `NotPlain`."""
    try:
        return _read(line.decode().strip())
    except (ValueError, RecursionError) as error:
        raise NotPlain("a message is not in the format") from error
