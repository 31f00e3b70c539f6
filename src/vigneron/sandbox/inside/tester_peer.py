"""The test's side of the border. Names of the code are `Remote`, and results are plain data.

What is compared with plain data is plain data. An object of the code is equal to no plain value, and its operators are
not asked about one: `__eq__`, `__sub__` or `__contains__` could give any answer.
"""

import asyncio
import builtins
import copy
import sys
import threading
import types
import unittest
import unittest.mock
from collections.abc import Iterator
from typing import Any, NoReturn

from vigneron.sandbox.inside.border import Peer
from vigneron.sandbox.inside.class_checks import check_classes
from vigneron.sandbox.inside.plain import PLAIN_CLASSES, NotPlain, dumps
from vigneron.sandbox.inside.refused import NoTest
from vigneron.sandbox.inside.remote import BINARY, COMPARE, SPECIAL, Raised, Remote

HIDDEN = (
    *(types.FunctionType, types.MethodType, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, unittest.TestCase),
)
"""Objects of the test of which the code gets no attribute: they lead to the test's source."""
MOCKS_OWN = ("assert", "call", "configure", "mock", "reset", "method_calls", "attach", "await")
"""Attributes of a mock, by their beginnings, that belong to the test: what it recorded, and its assertions."""

MOCK = unittest.mock.AsyncMock()


class PeerForTests(Peer):
    sends_state = False

    def __init__(self, receive: Any, send: Any) -> None:
        super().__init__(receive, send)
        self.used = False
        self._compared: dict[int, Remote] = {}
        self._constants: dict[tuple[int, str], Remote] = {}
        self._lock = threading.RLock()
        self._guests: set[int] = set()
        self.unknowable = ""
        """Why an equality says nothing."""
        self._requests = 0
        self._changeable: set[int] = set()

    def exchange(self, operation: str, *parts: Any) -> tuple[Any, Any]:
        self.used |= operation not in ("get", "names")
        if threading.get_ident() in self._guests:
            return self._exchange(operation, *parts)
        with self._lock:
            return self._exchange(operation, *parts)

    def _exchange(self, operation: str, *parts: Any) -> tuple[Any, Any]:
        self._requests += 1
        value, extra = super().exchange(operation, *parts)
        if isinstance(extra, dict) and isinstance(extra.get("out"), str):
            sys.stdout.write(extra["out"])
        return value, extra if isinstance(extra, dict) else {}

    def name(self, name: str) -> Any:
        """A global name of the code. Raises `NameError`."""
        value = self.request("get", name)
        if isinstance(value, Remote):
            value._v.name = name
        return value

    def builtin(self, name: str) -> Any:
        if name not in PLAIN_CLASSES:
            raise NotPlain("a builtin function")
        return PLAIN_CLASSES[name]

    # What the test does with the code's objects

    def takes_state(self, number: int) -> bool:
        """The code may change objects that are part of the test's call, not others that it returned before."""
        return number in self._changeable

    def lent_error(self, error: BaseException) -> Any:
        return Raised(error)  # its traceback leads to the test's source

    def attribute(self, remote: Remote, name: str) -> Any:
        if remote._v.mixed:
            _refuse(name)
        value = self.request("attr", remote, name)
        if isinstance(value, Remote) and remote._v.kind == "class":
            self._constants[remote._v.number, name] = value
        return value

    def call(self, remote: Any, method: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if remote._v.mixed:
            _refuse(method or "call")
        made = None
        if remote._v.kind == "class" and method is None:
            made = remote, copy.copy(args), copy.copy(kwargs)
        given = [*_remotes_in((*args, *kwargs.values()))]
        for each in given:
            each._v.passed = True
        held = set(self._held)
        self._changeable = {each._v.number for each in (remote, *given)}
        try:
            value, extra = self.exchange("call", remote, method, args, kwargs)
            changed = self.decode(extra["args"]) if value is None and "args" in extra else None
        finally:
            self._changeable = set()
        if isinstance(value, Remote):
            self._take_result(value, made, held)
        if changed is not None:
            for old, new in zip((*args, *kwargs.values()), (*changed[0], *changed[1].values()), strict=True):
                _update(old, new)
        if extra.get("state") is not None:
            remote._v.state = extra["state"]
        if made is not None and isinstance(value, Remote):
            value._v.made, value._v.trusted = made, True
        return value

    def _take_result(self, value: Remote, made: Any, held: set[int]) -> None:
        """An object that the test made is known by its arguments. It must be a new one, or the one that the same
        arguments gave before; and no function may return it that was not given it."""
        known = value._v
        if made is not None:
            again = known.made is not None and (known.made[1], known.made[2]) == made[1:]
            known.forged |= known.number in held and not again
        elif known.made is not None and not known.passed:
            known.forged = True
        known.since = self._requests

    def special(self, name: str, *args: Any) -> Any:
        mine = [arg for arg in args if isinstance(arg, Remote)]
        if name in ("isinstance", "issubclass"):
            return isinstance(args[1], Remote) and self.request("special", name, *args) is True
        if name == "exit":
            return self.request("special", name, *args[:3], None)
        if name == "contains":
            if (made := args[0]._v.made) is not None and made[0]._v.name[:1].isupper() and not args[0]._v.mixed:
                return self.request("special", name, *args) is True
            return any(args[1] == each for each in iter(args[0]))
        if name in COMPARE or name in BINARY or name == "divmod":
            return self._operator(name, args, mine)
        if args[0]._v.mixed:
            _refuse(name)
        return self.request("special", name, *args)

    def _operator(self, name: str, args: tuple[Any, ...], mine: list[Remote]) -> Any:
        if not all(remote._v.trusted for remote in mine):
            _refuse(name)
        plain = len(mine) < len(args)
        if plain and name in COMPARE:
            _refuse(name)
        value = self.request("special", name, *args)
        mixed = plain or any(remote._v.mixed for remote in mine)
        if isinstance(value, Remote):
            value._v.mixed |= mixed
            value._v.trusted = True
        elif mixed:
            _refuse(name)
        return value

    def equal(self, one: Remote, other: object) -> bool:
        """Two objects of the code are equal if their fields are, at the time they were returned."""
        if not isinstance(other, Remote) or one._v.forged or other._v.forged:
            return False
        for made, result in ((one, other), (other, one)):
            if made._v.made is not None and result._v.made is None and made._v.since < result._v.since:
                self.unknowable = "it makes an expected object before the call, which the code then sees: compare with "
                self.unknowable += "`f(x) == Point(1, 2)`"
                raise NoTest(self.unknowable)
        if one._v.state is None or other._v.state is None:
            return one is other and one._v.made is None
        for each in (one, other):
            self._compared[each._v.number] = each
        return bool(one._v.state == other._v.state)

    def check_classes(self) -> None:
        """Called at the end, because it makes more objects."""
        check_classes(self, self._compared.values(), self._constants)

    # What the code does with the test's objects

    def reply(self, request: list[Any]) -> bytes:
        """Only objects that the test gave to the code can be used by it: no builtins, classes of errors or texts, whose
        methods lead to the test's source or make objects in this process."""
        operation, *parts = request
        if operation != "input":
            target = parts[1] if operation == "special" and len(parts) > 1 else parts[0] if parts else None
            theirs = isinstance(target, list) and target[:1] == ["yours"]
            if not theirs or (operation == "special" and parts[0] in ("format", "isinstance", "issubclass")):
                return dumps(["raise", self.encode_error(TypeError("not an object of the test"))])
        return super().reply(request)

    def perform(self, operation: str, parts: list[Any]) -> tuple[Any, Any]:
        if parts and isinstance(parts[0], Raised):
            raise TypeError("not an object of the test")
        if operation == "call":
            target, method, args, kwargs = parts
            function = target if method is None else _public(target, method)
            return function(*args, **kwargs), None
        if operation == "attr":
            return _public(parts[0], parts[1]), None
        if operation == "set":
            _public(parts[0], parts[1], None)
            if isinstance(parts[0], unittest.mock.NonCallableMock):
                raise AttributeError(parts[1])
            setattr(parts[0], parts[1], parts[2])
            return None, None
        if operation == "special":
            return SPECIAL[parts[0]](*parts[1:]), None
        if operation == "input":
            return builtins.input(parts[0]), None
        if operation == "await":
            return self._awaited(parts[0]), None
        raise TypeError(f"a test's object has no {operation}")

    def _awaited(self, awaitable: Any) -> Any:
        """In a thread of its own: the test's event loop is waiting for the code."""
        outcome: list[Any] = []

        async def wait() -> Any:
            return await awaitable

        def run() -> None:
            self._guests.add(threading.get_ident())
            try:
                outcome.append(asyncio.run(wait()))
            except Exception as error:  # raised below
                outcome.extend((None, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if len(outcome) == 2:
            raise outcome[1]
        return outcome[0]


def _remotes_in(values: Any) -> Iterator[Remote]:
    for value in values:
        if isinstance(value, Remote):
            yield value
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _remotes_in(value)
        elif isinstance(value, dict):
            yield from _remotes_in((*value.keys(), *value.values()))


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"'{name}' of an object of the code with plain data: a result must be plain data to be compared")


def _public(target: Any, name: Any, *default: Any) -> Any:
    if not isinstance(name, str) or name.startswith("_") or isinstance(target, HIDDEN):
        raise AttributeError(name)
    if isinstance(target, type) and (target.__module__ != "__main__" or issubclass(target, unittest.TestCase)):
        raise AttributeError(name)
    if isinstance(target, unittest.mock.NonCallableMock) and name.startswith(MOCKS_OWN) and hasattr(MOCK, name):
        raise AttributeError(name)
    return getattr(target, name, *default)


def _update(old: Any, new: Any) -> None:
    """Give a container the content of another."""
    if type(old) is not type(new):
        return
    if isinstance(old, list) and len(old) == len(new):
        for at, part in enumerate(new):
            if isinstance(part, list | dict | set) and type(old[at]) is type(part):
                _update(old[at], part)
            else:
                old[at] = part
    elif isinstance(old, list):
        old[:] = new
    elif isinstance(old, dict):
        for key in [key for key in old if key not in new]:
            del old[key]
        for key, part in new.items():
            if key in old and isinstance(part, list | dict | set) and type(old[key]) is type(part):
                _update(old[key], part)
            else:
                old[key] = part
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif hasattr(old, "clear") and hasattr(old, "extend"):
        old.clear()
        old.extend(new)
