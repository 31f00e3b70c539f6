"""The process of a response's code. It runs the code, then does what the test's process asks for.

All that it sends is data: the code may replace this program, and gains nothing by it.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import types

from vigneron.sandbox.inside.border import Peer
from vigneron.sandbox.inside.plain import BASES, dumps, loads
from vigneron.sandbox.inside.remote import SPECIAL, Remote
from vigneron.sandbox.inside.start import confine, take_pipes
from vigneron.sandbox.inside.state import state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_REASON = 300
MAX_PRINTED = 2**20


class Method:
    """An attribute that is a method of its object: called by its name, in one request."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name


class Printed(io.TextIOBase):
    """Standard output, sent along with the result of each call."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.size < MAX_PRINTED:
            self.text.append(text[:MAX_PRINTED])
            self.size += len(text)
        return len(text)

    def take(self) -> str:
        text, self.text = "".join(self.text), []
        return text


class AnswerPeer(Peer):
    def __init__(self, module: types.ModuleType, receive: Callable[[], bytes], send: Callable[[bytes], Any]) -> None:
        super().__init__(receive, send)
        self._module, self._printed = module, Printed()
        self._loop: Any = None
        sys.stdout = self._printed
        builtins.input = lambda prompt="": self.request("input", str(prompt))

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Method):
            doc = getattr(getattr(value.owner, value.name, None), "__doc__", None)
            return ["method", self.lend(value.owner), value.name, doc if type(doc) is str else None]
        return super()._other(value, depth)

    def perform(self, operation: str, parts: list[Any]) -> tuple[Any, Any]:
        value, extra = self._perform(operation, parts)
        if printed := self._printed.take():
            extra["out"] = printed
        return value, extra

    def _perform(self, operation: str, parts: list[Any]) -> tuple[Any, dict[str, Any]]:
        if operation == "call":
            target, method, args, kwargs = parts
            function = target if method is None else getattr(target, method)
            before = self.encode((args, kwargs)) if _has_mutable(args, kwargs) else None
            value = function(*args, **kwargs)
            extra: dict[str, Any] = {}
            # By convention a function that changes its arguments returns None. Of others no change is sent: a test
            # that compares `f(x)` with `sorted(x)` must not be passed by emptying x.
            if value is None and before is not None and (after := self.encode((args, kwargs))) != before:
                extra["args"] = after
            if method is not None:
                extra["state"] = state_of(target)
            return value, extra
        if operation == "set":
            target, name, value = parts
            setattr(target, name, value)
            return None, {"state": state_of(target)}
        return self._simple(operation, parts), {}

    def _simple(self, operation: str, parts: list[Any]) -> Any:
        if operation == "get":
            if parts[0] not in vars(self._module):
                raise NameError(f"name '{parts[0]}' is not defined")
            return vars(self._module)[parts[0]]
        if operation == "names":
            known = {name: vars(self._module)[name] for name in parts[0] if name in vars(self._module)}
            return {n: v for n, v in known.items() if v is not None and not isinstance(v, (*BASES, types.ModuleType))}
        if operation == "attr":
            value = getattr(parts[0], parts[1])
            own = getattr(value, "__self__", None) is parts[0] and not isinstance(parts[0], types.ModuleType)
            return Method(parts[0], parts[1]) if own else value
        if operation == "del":
            return delattr(parts[0], parts[1])
        if operation == "special":
            return SPECIAL[parts[0]](*parts[1:])
        if operation == "dir":
            return dir(parts[0])
        if operation == "await":
            return self._awaited(parts[0])
        if operation == "anext":
            return self._awaited(parts[0].__anext__())
        raise ValueError(operation)

    def _awaited(self, awaitable: Any) -> Any:
        import asyncio

        async def wait() -> Any:
            return await awaitable

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(wait())


def _has_mutable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    kinds = {type(each) for each in (*args, *kwargs.values())}
    return not kinds <= {int, float, str, bool, type(None), bytes, Remote}


def main(limits: str) -> None:
    confine(loads(limits.encode()))
    receive, write = take_pipes()
    leave, serialise = os._exit, dumps
    sys.path[:] = [place for place in sys.path if place]
    write(serialise(["started"]))
    given = loads(receive())
    if given["stdin"] is not None:
        write(serialise(["output", *_program(given["code"], given["stdin"], given["shows_value"])]))
        leave(0)
    module = types.ModuleType("answer")
    sys.modules["answer"] = sys.modules["solution"] = module
    try:
        exec(compile(given["code"], "<answer>", "exec", 0, True), module.__dict__)
    except BaseException as error:  # whatever the code raises, `SystemExit` too, is a failure
        try:
            text = str(error)[:MAX_REASON]
        except Exception:  # `__str__` of the code's own exception may fail
            text = ""
        write(serialise(["failed", type(error).__name__, text]))
        leave(1)
    write(serialise(["ready"]))
    peer = AnswerPeer(module, receive, write)
    while True:
        kind, *rest = peer.message()
        if kind == "ask":
            write(peer.reply(rest))


def _program(code: str, stdin: str, shows_value: bool) -> tuple[bool, str, str]:
    """Run the code as a program in a child process: whether it ends well, its output, the last line of its errors."""
    files = [_nameless() for _ in range(3)]
    _write_all(files[0], stdin)
    os.lseek(files[0], 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        for standard, file in enumerate(files):
            os.dup2(file, standard)
        os.closerange(3, 64)
        main_module = types.ModuleType("__main__")
        main_module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main_module
        sys.argv = ["answer.py"]
        if shows_value:
            _run_showing(code, main_module.__dict__)
        else:
            exec(compile(code, "<answer>", "exec", 0, True), main_module.__dict__)
        sys.exit()
    _, status = os.waitpid(child, 0)
    printed, errors = (_read(file) for file in files[1:])
    return status == 0, printed, (errors.strip().splitlines() or [""])[-1][:MAX_REASON]


def _run_showing(code: str, names: dict[str, Any]) -> None:
    """As at Python's prompt, the value of an expression that stands last is printed."""
    import ast

    tree = ast.parse(code, "<answer>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<answer>", "exec", 0, True), names)
    if last is not None:
        exec(compile(ast.Interactive([last]), "<answer>", "single", 0, True), names)


def _write_all(file: int, text: str) -> None:
    rest = text.encode("utf-8", "surrogateescape")
    while rest:
        rest = rest[os.write(file, rest) :]


def _nameless() -> int:
    file = os.open("/tmp/file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.unlink("/tmp/file")
    return file


def _read(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, MAX_PRINTED + 1).decode("utf-8", "replace")
