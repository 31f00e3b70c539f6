"""Calls across the border between the process of a response's code and that of its test.

Each side asks the other to look up a name, call a function or apply an operator, and may be asked meanwhile (a test
passes a function, and the code calls it). Plain data crosses as a copy. Anything else stays where it is: the other side
gets a `Remote`, which has a number and forwards what is done with it.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types

from vigneron.rewards.graders.inside.plain import (
    PLAIN_CLASSES,
    NotPlain,
    base_of,
    decode,
    dumps,
    encode,
    encode_base,
    loads,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_STATE = 200
"""Parts of an object's state that are sent with it; one with more is equal to itself only."""
MAX_TEXT = 500

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

    def __init__(self, peer: Peer, number: int, kind: str, type_name: str, state: Any) -> None:
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


def _remote_type(name: str) -> Any:
    """So that `type(x).__name__` is the name of the class on the other side."""
    if (Remote, name) not in _types:
        _types[Remote, name] = type(name if name.isidentifier() else "Remote", (Remote,), {"__slots__": ()})
    return _types[Remote, name]


def _like(base: type, name: str) -> Any:
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


class Peer:
    """One side. `perform` does what the other side asks for; a subclass may refuse some of it."""

    sends_state = True

    def __init__(self, receive: Callable[[], bytes], send: Callable[[bytes], Any]) -> None:
        self._receive, self._send = receive, send
        self._lent: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._held: dict[int, Remote] = {}
        self._classes: dict[int, type] = {}

    # Requests to the other side

    def request(self, *message: Any) -> Any:
        return self.exchange(*message)[0]

    def exchange(self, operation: str, *parts: Any) -> tuple[Any, Any]:
        """The result, and what comes with it."""
        self._send(dumps(["ask", operation, *map(self.encode, parts)]))
        while True:
            kind, *rest = self.message()
            if kind == "ask":
                self._send(self.reply(rest))
            elif kind == "value" and len(rest) == 2:
                return self.decode(rest[0]), rest[1]
            elif kind == "raise" and len(rest) == 1:
                raise self.decode_error(rest[0], operation == "special" and parts[0] == "next")
            else:
                raise NotPlain("a message is not in the format")

    def message(self) -> list[Any]:
        message = loads(self._receive())
        if type(message) is not list or not message:
            raise NotPlain("a message is not in the format")
        return message

    def attribute(self, remote: Remote, name: str) -> Any:
        return self.request("attr", remote, name)

    def call(self, remote: Any, method: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.request("call", remote, method, args, kwargs)

    def special(self, name: str, *args: Any) -> Any:
        return self.request("special", name, *args)

    def equal(self, one: Remote, other: object) -> bool:
        return one is other

    # Requests of the other side

    def reply(self, request: list[Any]) -> bytes:
        try:
            operation, *parts = request
            value, extra = self.perform(operation, [self.decode(part) for part in parts])
            return dumps(["value", self.encode(value), extra])
        except BaseException as error:  # the other side raises it
            return dumps(["raise", self.encode_error(error)])

    def perform(self, operation: str, parts: list[Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    # Values

    def encode(self, value: Any) -> Any:
        return encode(value, self._other)

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Remote):
            return ["yours", value._v.number]
        remote = getattr(value, "_v_remote", None) if type(value).__dict__.get("__getattr__") else None
        if isinstance(remote, Remote):
            return ["yours", remote._v.number]
        name = getattr(value, "__name__", None)
        if isinstance(value, type | types.BuiltinFunctionType) and getattr(builtins, str(name), None) is value:
            return ["builtin", name]
        kind = type(value).__name__[:60]
        if (base := base_of(value)) is not None:
            return ["like", base.__name__, encode_base(value, base, self._other, depth), self.lend(value), kind]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["error class", self._lineage(value)]
        state = None
        if self.sends_state and not isinstance(value, type | types.FunctionType | types.ModuleType):
            state = state_of(value)
        return ["ref", self.lend(value), _kind(value), kind, state]

    def lend(self, value: Any) -> int:
        """The number under which the other side knows the object; it stays alive."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._lent)
            self._lent.append(value)
        return self._numbers[id(value)]

    def decode(self, data: Any) -> Any:
        return decode(data, self._special)

    def _special(self, kind: str, parts: list[Any]) -> Any:
        try:
            if kind == "yours":
                return self._lent[_count(parts[0])]
            if kind == "builtin":
                return self.builtin(str(parts[0]))
            if kind == "error class":
                return self._error_class(parts[0])
            if kind == "method":
                return self._method(self._held[_count(parts[0])], str(parts[1]))
            if kind == "like":
                base, number, type_name = PLAIN_CLASSES[parts[0]], _count(parts[2]), str(parts[3])[:60]
                value = _like(base, type_name)(self.decode(parts[1]))
                value._v_remote = self._remote(number, "object", type_name, None)
                return value
            if kind == "ref":
                number, kind, type_name, state = parts
                remote = self._remote(_count(number), str(kind), str(type_name)[:60], state)
                return self._coroutine(remote) if kind == "coroutine" else remote
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise NotPlain("a message is not in the format") from error
        raise NotPlain("a message is not in the format")

    def builtin(self, name: str) -> Any:
        return getattr(builtins, name)

    def _method(self, remote: Remote, name: str) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            return self.call(remote, name, args, kwargs)

        return method

    async def _coroutine(self, remote: Remote) -> Any:
        return self.request("await", remote)

    def _remote(self, number: int, kind: str, type_name: str, state: Any) -> Remote:
        if number not in self._held:
            self._held[number] = _remote_type(type_name)(Held(self, number, kind, type_name, state))
        elif state is not None and self.takes_state(number):
            self._held[number]._v.state = state
        return self._held[number]

    def takes_state(self, number: int) -> bool:
        """Whether the other side may change what is known of an object."""
        return True

    # Exceptions

    def _lineage(self, kind: type) -> list[Any]:
        """The class and its bases, up to one that both sides have."""
        lineage: list[Any] = []
        for each in kind.__mro__:
            shared = _shared_error(each.__module__, each.__name__)
            lineage.append([each.__module__, each.__name__, None if shared is each else self.lend(each)])
            if shared is each:
                break
        return lineage

    def encode_error(self, error: BaseException) -> Any:
        if isinstance((remote := getattr(error, "_v_remote", None)), Remote):
            return ["yours", remote._v.number]
        try:
            text = str(error)[:MAX_TEXT]
        except Exception:  # the class is the code's own
            text = ""
        try:
            args = self.encode(tuple(error.args))
        except Exception:  # arguments may be anything
            args = ["tuple", text]
        return ["error", self._lineage(type(error)), text, args, self.lend(self.lent_error(error))]

    def lent_error(self, error: BaseException) -> Any:
        return error

    def decode_error(self, data: Any, of_next: bool) -> BaseException:
        try:
            kind, *parts = data
            if kind == "yours":
                error = self._lent[_count(parts[0])]
                error = error._error if isinstance(error, Raised) else error
                if isinstance(error, StopIteration | StopAsyncIteration) and not of_next:
                    return RuntimeError(f"the code raised {type(error).__name__}")
                return error if isinstance(error, Exception) else NotPlain("no error")
            lineage, text, args, number = parts
            error_class = self._error_class(lineage)
            if error_class is SystemExit:
                error_class = RemoteExit
            elif not issubclass(error_class, Exception) or (
                issubclass(error_class, StopIteration | StopAsyncIteration) and not of_next
            ):
                return RuntimeError(f"the code raised {error_class.__name__}")
            error = error_class.__new__(error_class)
            error.args = self.decode(args)
            if issubclass(error_class, RemoteError):
                error.__dict__["_v_text"] = str(text)[:MAX_TEXT]
            error.__dict__["_v_remote"] = self._remote(_count(number), "object", error_class.__name__, None)
            return error
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as wrong:
            raise NotPlain("a message is not in the format") from wrong

    def _error_class(self, lineage: Any) -> type:
        (module, name, number), *bases = lineage
        if number is None:
            error_class = _shared_error(str(module), str(name))
            if error_class is None:
                raise NotPlain("no exception class that both sides have")
            return error_class
        if _count(number) not in self._classes:
            base = self._error_class(bases) if bases else Exception
            if not issubclass(base, Exception):
                base = Exception
            own = (base,) if issubclass(base, RemoteError) else (RemoteError, base)
            self._classes[number] = type(str(name) if str(name).isidentifier() else "Error", own, {})
        return self._classes[number]


def _shared_error(module: str, name: str) -> Any:
    """An exception class of the standard library, but none that ends or skips a test."""
    if module.partition(".")[0] not in sys.stdlib_module_names or module.startswith(("unittest", "_pytest", "doctest")):
        return None
    try:
        __import__(module)
        error_class = getattr(sys.modules[module], name, None)
    except Exception:  # a module that cannot be imported here
        return None
    return error_class if isinstance(error_class, type) and issubclass(error_class, BaseException) else None


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise NotPlain("a message is not in the format")
    return number


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, types.CoroutineType):
        return "coroutine"
    return "function" if isinstance(value, types.FunctionType) else "object"


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
        state = fields(value, 0)
    except Exception:  # the class is the code's own, and may do anything
        return None
    return state if state[0] != "object" or state[2] != ["dict"] else None
