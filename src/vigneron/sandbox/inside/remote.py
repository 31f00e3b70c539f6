"""Objects of the other process: a `Remote` has a number and forwards what is done with it."""

from __future__ import annotations

import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BINARY = ["add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"]
COMPARE = ("lt", "le", "gt", "ge")
SPECIAL: dict[str, Callable[..., Any]] = {
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "abs": abs,
    "round": round,
    "neg": operator.neg,
    "pos": operator.pos,
    "invert": operator.invert,
    "reversed": reversed,
    "format": format,
    "contains": operator.contains,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "divmod": divmod,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
    "isinstance": lambda kind, value: isinstance(value, kind),
    "issubclass": lambda kind, value: issubclass(value, kind),
    **{name: getattr(operator, name) for name in (*BINARY, *COMPARE)},
}


class Remote:
    """An object of the other side."""

    __slots__ = ("_v",)

    def __init__(self, held: Held) -> None:
        object.__setattr__(self, "_v", held)

    def __getattr__(self, name: str) -> Any:
        return self._v.peer.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._v.peer.request("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._v.peer.request("del", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._v.peer.call(self, None, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return bool(self._v.peer.equal(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._v.type_name)

    def __dir__(self) -> Any:
        return self._v.peer.request("dir", self)

    def __await__(self) -> Any:
        return self._v.peer.request("await", self)
        yield

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return self._v.peer.request("anext", self)


class Held:
    """What is known of an object of the other side."""

    def __init__(self, peer: Any, number: int, kind: str, type_name: str, state: Any) -> None:
        self.peer, self.number, self.kind, self.type_name = peer, number, kind, type_name
        self.state = self.first_state = state
        self.made: tuple[Remote, tuple[Any, ...], dict[str, Any]] | None = None
        """The class and the arguments of an object that the test made."""
        self.name = ""
        """The name under which the test looked it up."""
        self.trusted = False
        """Made by the test itself: by calling a class, or by an operator on such objects."""
        self.mixed = False
        """Made by an operator with plain data, which the code has seen."""
        self.passed = False
        """The test gave it to the code as an argument."""
        self.forged = False
        """Neither a new object nor one that the code was given: it is equal to nothing."""
        self.since = 0
        """The number of the request that made it, or last returned it."""


def _forward(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Remote, *args: Any) -> Any:
        return self._v.peer.special(name, *((*args, self) if swapped else (self, *args)))

    return method


for _name in SPECIAL:
    _own = {"isinstance": "instancecheck", "issubclass": "subclasscheck"}.get(_name, _name.rstrip("_"))
    setattr(Remote, f"__{_own}__", _forward(_name))
    if _name in BINARY:
        setattr(Remote, f"__r{_own}__", _forward(_name, swapped=True))


_types: dict[tuple[type, str], Any] = {}


def remote_type(name: str) -> Any:
    """So that `type(x).__name__` is the name of the class on the other side."""
    if (Remote, name) not in _types:
        attributes = {"__slots__": (), "__doc__": property(lambda self: self._v.peer.attribute(self, "__doc__"))}
        _types[Remote, name] = type(name if name.isidentifier() else "Remote", (Remote,), attributes)
    return _types[Remote, name]


def like(base: type, name: str) -> Any:
    """A plain type whose other attributes are those of an object on the other side: a named tuple, an IntEnum."""

    def attribute(self: Any, name: str) -> Any:
        if name == "_v_remote":
            raise AttributeError(name)
        return getattr(self._v_remote, name)

    if (base, name) not in _types:
        valid = name if name.isidentifier() else base.__name__
        _types[base, name] = type(valid, (base,), {"__getattr__": attribute})
    return _types[base, name]


class RemoteError(Exception):
    """Base of local copies of the other side's exception classes."""

    _v_remote: Any = None

    def __str__(self) -> str:
        return str(self.__dict__.get("_v_text", ""))

    def __getattr__(self, name: str) -> Any:
        remote = self.__dict__.get("_v_remote")
        if remote is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(remote, name)


class Raised:
    """An error of this side that the other one may raise again. Nothing else can be done with it there."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error


class RemoteExit(SystemExit):
    """`sys.exit` in the code. Not the test's own, after which a test is over."""
