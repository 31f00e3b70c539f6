"""Calls across the border between the process of a response's code and that of its test.

Each side asks the other to look up a name, call a function or apply an operator, and may be asked meanwhile (a test
passes a function, and the code calls it). Plain data crosses as a copy. Anything else stays where it is: the other side
gets a `Remote`, which has a number and forwards what is done with it.
"""

from __future__ import annotations

import builtins
import sys
import types

from vigneron.sandbox.inside.plain import (
    PLAIN_CLASSES,
    NotPlain,
    base_of,
    decode,
    dumps,
    encode,
    encode_base,
    loads,
)
from vigneron.sandbox.inside.remote import Held, Raised, Remote, RemoteError, RemoteExit, like, remote_type
from vigneron.sandbox.inside.state import state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_TEXT = 500
FIELDS = (
    *("errno", "strerror", "filename", "code", "value", "name", "path", "msg", "doc", "pos", "lineno", "colno"),
    *("encoding", "object", "start", "end", "reason", "text", "offset", "returncode", "timeout"),
)
"""Attributes of errors of the standard library."""


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
                return self._method(self._held[_count(parts[0])], str(parts[1]), *parts[2:])
            if kind == "like":
                base, number, type_name = PLAIN_CLASSES[parts[0]], _count(parts[2]), str(parts[3])[:60]
                value = like(base, type_name)(self.decode(parts[1]))
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

    def _method(self, remote: Remote, name: str, doc: Any = None) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            return self.call(remote, name, args, kwargs)

        method.__name__ = name
        method.__doc__ = doc if type(doc) is str else None
        return method

    async def _coroutine(self, remote: Remote) -> Any:
        return self.request("await", remote)

    def _remote(self, number: int, kind: str, type_name: str, state: Any) -> Remote:
        if number not in self._held:
            self._held[number] = remote_type(type_name)(Held(self, number, kind, type_name, state))
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
        fields = self.encode(error_fields(error)) if self.sends_state else ["dict"]
        return ["error", self._lineage(type(error)), text, args, self.lend(self.lent_error(error)), fields]

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
            lineage, text, args, number, *fields = parts
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
            for name, value in self.decode(fields[0]).items() if fields else ():
                _set_field(error, name, value)
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


def error_fields(error: BaseException) -> dict[str, Any]:
    """Attributes that are plain data, such as `errno` and `pos`."""
    fields: dict[str, Any] = {}
    for name in (*FIELDS, *getattr(error, "__dict__", ())):
        try:
            value = getattr(error, name, None)
            if value is not None and not str(name).startswith("_"):
                encode(value, _refuse)
                fields[str(name)] = value
        except Exception:  # the class is the code's own, or the value no plain data
            continue
    return fields


def _refuse(value: Any, depth: int) -> Any:
    raise NotPlain("no plain data")


def _set_field(error: BaseException, name: Any, value: Any) -> None:
    if type(name) is not str or name.startswith("_") or isinstance(value, Remote):
        raise NotPlain("a message is not in the format")
    try:
        setattr(error, name, value)
    except (AttributeError, TypeError):  # one that cannot be set
        return


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
