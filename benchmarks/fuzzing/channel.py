"""Cases of the code grader's channel: what the process of a response's code sends, to the runner and to the test."""

import io
import json
import os
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from benchmarks.fuzzing.guard import Finding
from benchmarks.fuzzing.kinds import Case
from benchmarks.fuzzing.mutations import changed_bytes, changed_json, garbage
from vigneron.sandbox.backends import Limits
from vigneron.sandbox.inside.plain import NotPlain
from vigneron.sandbox.inside.remote import Remote
from vigneron.sandbox.inside.tester_peer import PeerForTests
from vigneron.sandbox.pipes import SandboxPipes
from vigneron.sandbox.runner import ProgramTest, PythonTest, run_session

ERROR = [["builtins", "ValueError", None]]
OWN_ERROR = [["answer", "Odd", 7], ["builtins", "KeyError", None]]
MESSAGES: tuple[Any, ...] = (
    ["started"],
    ["ready"],
    ["failed", "ValueError", "no"],
    ["output", True, "4.5\n", ""],
    ["value", 3, None],
    ["value", ["float", "0x1.8p+0"], {"out": "printed"}],
    ["value", ["list", 1, ["tuple", 2, ["int", "0xffffffffffffffffff"]], ["dict", ["a", ["set", 1, 2]]]], {}],
    ["value", ["ref", 0, "function", "function", None], {"state": ["object", "P", ["dict", ["x", 1]]]}],
    ["value", ["ref", 1, "class", "type", None], None],
    [
        "value",
        ["ref", 2, "object", "P", ["object", "P", ["dict", ["x", 1]]]],
        {"args": ["tuple", ["tuple", 1], ["dict"]]},
    ],
    ["value", ["ref", 3, "coroutine", "coroutine", None], None],
    ["value", ["like", "int", 5, 4, "Five"], None],
    ["value", ["method", 0, "run"], None],
    ["value", ["builtin", "int"], None],
    ["value", ["yours", 0], None],
    ["value", ["Decimal", "1.5"], None],
    ["value", ["date", "2024-02-29"], None],
    ["value", ["error class", OWN_ERROR], None],
    ["raise", ["error", ERROR, "no", ["tuple", "no"], 5]],
    ["raise", ["error", OWN_ERROR, "no", ["tuple"], 6]],
    ["raise", ["yours", 0]],
    ["ask", "call", ["yours", 0], None, ["tuple", 3], ["dict"]],
    ["ask", "attr", ["yours", 0], "__globals__"],
    ["ask", "special", "len", ["yours", 0]],
    ["ask", "input", "?"],
    ["result", "passed", ""],
    ["over", True],
)
NUMBERS = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"1.5", b"1" * 5000, b"1e-999", b"-0", b"0x1", b"\xff")


def _line(random: Random) -> bytes:
    line = json.dumps(random.choice(MESSAGES)).encode()
    kind = random.randrange(8)
    if kind < 3:
        line = changed_json(line, random)
    elif kind == 3:
        line = changed_bytes(line, random)
    elif kind == 4:
        digits = [at for at, byte in enumerate(line) if 48 <= byte < 58]
        at = random.choice(digits) if digits else 0
        line = line[:at] + random.choice(NUMBERS) + line[at + 1 :]
    elif kind == 5 and random.random() < 0.2:
        line = garbage(random)
    return line.replace(b"\n", b" ") + b"\n"


def channel_case(random: Random, folder: Path) -> Case:
    lines = [_line(random) for _ in range(random.randrange(1, 12))]
    start = random.choice((b"", b'["started"]\n', b'["started"]\n["ready"]\n'))
    secret = f"{random.getrandbits(128):x}"
    is_program = random.random() < 0.5

    def case() -> None:
        test = ProgramTest("3\n", secret) if is_program else PythonTest(f"assert f(3) == {secret!r}")
        _to_the_runner(start + b"".join(lines), test)
        out, sys.stdout = sys.stdout, io.StringIO()
        try:
            _to_the_test(lines, secret)
        finally:
            sys.stdout = out

    return case


def _to_the_runner(sent: bytes, test: PythonTest | ProgramTest) -> None:
    """What the code's process sends decides on no reward by itself."""
    ends = [os.pipe() for _ in range(3)]
    files = [os.fdopen(ends[0][1], "wb", 0), os.fdopen(ends[1][0], "rb", 0), os.fdopen(ends[2][0], "rb", 0)]
    process = SimpleNamespace(stdin=files[0], stdout=files[1], stderr=files[2], wait=lambda: 0)
    running: Any = SimpleNamespace(pipes=tuple(files), container=("x", "x"), process=process)
    os.write(ends[1][1], sent[:60_000])
    os.close(ends[1][1])
    os.close(ends[2][1])
    try:
        result = run_session(SandboxPipes(running), None, Limits(), "", test)
    finally:
        os.close(ends[0][0])
        for file in files:
            file.close()
    if result.end in ("passed", "missing"):
        raise Finding(f"a forged message makes a test {result.end}: {result.why}")


def _to_the_test(lines: list[bytes], secret: str) -> None:
    """A test ends with an error or a result of its own, and no reply is what the test expects."""
    rest = iter(lines)

    def receive() -> bytes:
        line = next(rest, None)
        if line is None:
            raise NotPlain("no more messages")
        return line

    peer = PeerForTests(receive, lambda line: None)
    peer.lend(lambda value: value)
    try:
        found = peer.name("f")
        for value in (found, found(3) if callable(found) else found):
            if value == secret or secret == value or (isinstance(value, Remote) and value == [secret]):
                raise Finding("a reply equals what only the test knows")
            for use in (len, list, str, abs, float, bool, repr):
                try:
                    use(value)
                except Exception:  # a test fails
                    continue
        peer.check_classes()
    except Finding:
        raise
    except Exception:  # a test fails
        return
    except BaseException as error:
        if not isinstance(error, SystemExit):
            raise Finding(f"the test ends with {type(error).__name__}") from None
