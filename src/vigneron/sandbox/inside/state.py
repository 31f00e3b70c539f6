"""The fields of an object of the code, by which a test compares it."""

from __future__ import annotations

import types

from vigneron.sandbox.inside.plain import SMALL, NotPlain, base_of, dumps, encode, encode_base

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_STATE = 200
"""Parts of an object's state that are sent with it; one with more is equal to itself only."""
UNORDERED = ("set", "frozenset", "dict")


def state_of(value: Any) -> Any:
    """The fields of an object and of the objects inside, as JSON without numbers; None if it has none or too many."""
    seen: dict[int, int] = {}

    def fields(value: Any, depth: int) -> Any:
        if isinstance(value, type | types.FunctionType | types.ModuleType | types.MethodType):
            return ["named", str(getattr(value, "__qualname__", ""))]
        if id(value) in seen:
            return ["again", seen[id(value)]]
        seen[id(value)] = len(seen)
        if len(seen) > MAX_STATE:
            raise NotPlain("too many parts")
        if (base := base_of(value)) is not None:
            return encode_base(value, base, fields, depth)
        own = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            names = kind.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if hasattr(value, name):
                    own[name] = getattr(value, name)
        return ["object", type(value).__qualname__, encode(own, fields, depth)]

    try:
        state = _canonical(fields(value, 0))
    except Exception:  # the class is the code's own, and may do anything
        return None
    return state if state[0] != "object" or state[2] != ["dict"] else None


def _canonical(data: Any) -> Any:
    """Equal for values that are equal: 1 is 1.0, and neither sets nor dictionaries have an order."""
    if type(data) is not list:
        return data
    kind, *parts = data
    if kind == "float" and (number := float.fromhex(parts[0])).is_integer():
        return int(number) if abs(number) < SMALL else ["int", hex(int(number))]
    if kind == "dict":
        parts = [[_canonical(key), _canonical(part)] for key, part in parts]
    elif kind == "OrderedDict":
        return [kind, *([_canonical(key), _canonical(part)] for key, part in parts[0][1:])]
    else:
        parts = [_canonical(part) for part in parts]
    return [kind, *(sorted(parts, key=dumps) if kind in UNORDERED else parts)]
