"""The process of tests. It never runs a response's code: `tester_peer.py` says how a test uses it."""

import asyncio
import builtins
import gc
import inspect
import json
import os
import sys
import types
import unittest
import unittest.mock
from typing import Any

from vigneron.sandbox.inside import pytest_names
from vigneron.sandbox.inside.names import HELPERS, STANDARD, helper, is_pythons
from vigneron.sandbox.inside.plain import dumps
from vigneron.sandbox.inside.refused import MODULES, NoTest
from vigneron.sandbox.inside.remote import Remote, RemoteExit
from vigneron.sandbox.inside.rewrite import REACHED, Prepared, prepare
from vigneron.sandbox.inside.start import confine, take_pipes
from vigneron.sandbox.inside.tester_peer import PeerForTests

MAX_REASON = 300


class Names(dict[str, Any]):
    """The test's global names. Unknown ones are the code's, except for builtins and modules of the standard library."""

    def __init__(self, peer: PeerForTests, prepared: Prepared) -> None:
        super().__init__(__name__="__main__", __builtins__=builtins)
        self._peer, self._own, self._called = peer, prepared.own, prepared.called
        wanted = [name for name in sorted(prepared.mentioned) if not self._is_pythons(name)]
        # A class body does not look for missing names.
        values = peer.request("names", wanted)
        for name, value in values.items() if isinstance(values, dict) else ():
            if name in wanted:
                self[name] = value
                if isinstance(value, Remote):
                    value._v.name = name

    def _is_pythons(self, name: str) -> bool:
        return is_pythons(name) and name not in self._own

    def __missing__(self, name: str) -> Any:
        if not self._is_pythons(name):
            self._peer.used = True
            return self._peer.name(name)
        if name in HELPERS and (name not in STANDARD or name in self._called):  # `datetime` is a module and a class
            return helper(name)
        if name in STANDARD and not hasattr(builtins, name):
            return __import__(name)
        raise KeyError(name)


class TestRun:
    def __init__(self, peer: PeerForTests) -> None:
        self.peer, self.reached = peer, 0

    def reach(self) -> None:
        self.reached += 1

    def result(self, test: str, setup: str, entry: str | None) -> tuple[str, str]:
        """`passed`, `failed` or `missing`, and why."""
        try:
            prepared = prepare(test, setup, entry)
        except NoTest as error:
            return "missing", str(error)
        names = Names(self.peer, prepared)
        self._instrument()
        try:
            self._run(prepared, names)
            self.peer.check_classes()
        except NoTest as error:
            return "missing", str(error)
        except BaseException as error:  # whatever a test raises is a failure
            why = _described(error)
            if self.peer.unknowable:
                return "missing", self.peer.unknowable
            if not self.peer.used:
                return "missing", f"it fails before it uses the code ({why})"
            return "failed", why
        if not self.peer.used:
            return "missing", "it does not use the code: write `assert f(x) == value` with a name of the code"
        if not self.reached:
            return "failed", "no assertion was reached"
        return "passed", ""

    def _instrument(self) -> None:
        for name in [name for name in dir(unittest.TestCase) if name.startswith("assert") or name == "fail"]:
            setattr(unittest.TestCase, name, self._counting(getattr(unittest.TestCase, name)))
        for kind in (unittest.mock.NonCallableMock, unittest.mock.AsyncMock):
            for name in [name for name in dir(kind) if name.startswith("assert_")]:
                setattr(kind, name, self._counting(getattr(kind, name)))
        unittest.main = lambda *_, **__: None  # type: ignore[assignment]
        pytest_names.install(self.reach)
        for name in MODULES:
            sys.modules[name] = _CodeModule(name, self.peer)

    def _counting(self, method: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.reach()
            return method(*args, **kwargs)

        return counted

    def _run(self, prepared: Prepared, names: Names) -> None:
        names[REACHED] = self.reach
        try:
            exec(compile(prepared.tree, "<test>", "exec", 0, True), names)
        except RemoteExit:
            raise
        except SystemExit as error:
            if error.code:
                raise
        defined = [
            value for name, value in [*names.items()] if isinstance(value, type) and value.__module__ == "__main__"
        ]
        for kind in defined:
            if issubclass(kind, unittest.TestCase):
                self._run_case(kind)
            elif kind.__name__.startswith("Test"):
                self._run_class(kind)
        for name in prepared.calls:
            self._call(names[name])

    def _run_case(self, kind: type[unittest.TestCase]) -> None:
        outcome = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(outcome)
        wrong = [f"{case.id().removeprefix('__main__.')} fails" for case, _ in (*outcome.failures, *outcome.errors)]
        if wrong or outcome.unexpectedSuccesses:
            raise AssertionError(wrong[0] if wrong else f"{kind.__name__}: an expected failure passes")

    def _run_class(self, kind: type) -> None:
        for name in [name for name in dir(kind) if name.startswith("test")]:
            one = kind()
            for before in ("setup_class", "setup_method"):
                if hasattr(one, before):
                    getattr(one, before)(*([None] if _needs(getattr(one, before)) else []))
            self._call(getattr(one, name))
            if hasattr(one, "teardown_method"):
                one.teardown_method(*([None] if _needs(one.teardown_method) else []))

    def _call(self, function: Any) -> None:
        for case in getattr(function, "_cases_", [{}]):
            if needs := [name for name in _needs(function) if name not in case]:
                raise NoTest(
                    f"`{function.__name__}` takes an argument '{needs[0]}': fixtures of pytest are not known here"
                )
            result = function(**case)
            if inspect.iscoroutine(result):
                asyncio.run(result)


def _needs(function: Any) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = inspect.signature(function).parameters.values()
    return [each.name for each in given if each.default is each.empty and each.kind not in kinds]


class _CodeModule(types.ModuleType):
    """`import answer`, `from solution import f`."""

    def __init__(self, name: str, peer: PeerForTests) -> None:
        super().__init__(name)
        self.__dict__["_peer"] = peer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__["_peer"].used = True
        try:
            return self.__dict__["_peer"].name(name)
        except NameError as error:
            raise AttributeError(str(error)) from None


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the test's own exception
        text = ""
    if isinstance(error, AssertionError) and text:
        return text[:MAX_REASON]
    name = type(error).__name__
    return f"{name}: {text}"[:MAX_REASON] if text else name


def main(_: str) -> None:
    """For each request a new process, forked from this one."""
    receive, send = take_pipes()
    sys.path[:] = [place for place in sys.path if place]
    before = _files()
    gc.collect()
    gc.freeze()  # else the collector of each child copies all memory
    send(dumps(["started"]))
    while True:
        given = json.loads(receive())
        child = os.fork()
        if child == 0:
            confine(given["limits"])
            run = TestRun(PeerForTests(receive, send))
            try:
                end, why = run.result(given["test"], given["setup"], given["entry"])
            except BaseException as error:  # a message that is not in the format
                end, why = "failed", _described(error)
            send(dumps(["result", end, why]))
            os._exit(0)
        os.waitpid(child, 0)
        send(dumps(["over", _files() == before]))


def _files() -> list[str]:
    return [*os.listdir("/tmp"), *os.listdir("/dev/shm")]
