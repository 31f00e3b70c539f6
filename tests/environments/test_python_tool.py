"""The `python` tool: the model's code in the sandbox, off unless it is named."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.real_templates import template
from support.sandboxed import needs_sandbox
from vigneron.environments.python_tool import python_tool
from vigneron.environments.tools import ToolEnvironment, tool_environment
from vigneron.errors import UserError
from vigneron.sandbox.runner import find_sandbox

QWEN = template("qwen3")


@cache
def environment(timeout_s: float = 300.0) -> ToolEnvironment:
    return tool_environment(["python"], QWEN, timeout_s=timeout_s, max_result_chars=1000)({"prompt": "question"}, 0)


def ran(code: str, timeout_s: float = 300.0) -> tuple[str, int]:
    """What the model reads, and the number of errors."""
    raw = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"
    own = environment(timeout_s)
    reply = asyncio.run(own.reply([own.read_turn(raw, raw)]))
    assert not isinstance(reply.messages, str)
    return reply.messages[0]["content"], reply.log["tool_errors"]


def test_the_tool_is_off_unless_it_is_named() -> None:
    def add(a: int) -> int:
        """Add.

        Args:
            a: It.
        """
        return a

    assert list(tool_environment([add], QWEN).tools) == ["add"]


@needs_sandbox
def test_its_schema_has_the_code() -> None:
    (schema,) = tool_environment(["python"], QWEN).schemas
    assert schema["function"]["name"] == "python"
    assert schema["function"]["parameters"]["required"] == ["code"]


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "text", "errors"),
    [
        ("print('a')\n2 + 3", "a\n5", 0),
        ("x = 6 * 7\nx", "42", 0),
        ("'text'", "'text'", 0),
        ("None", "", 0),
        ("x = 1", "", 0),
        ("import math\nprint(math.comb(5, 2), end='')", "10", 0),
        ("print('before')\n1 / 0", "before\nerror: ZeroDivisionError: division by zero", 1),
        ("print('no newline', end='')\nfoo", "no newline\nerror: NameError: name 'foo' is not defined", 1),
        ("def f(:", "error: SyntaxError: invalid syntax", 1),
        ("raise SystemExit(2)", "error: the code failed", 1),
        ("import os\nprint('x', flush=True)\nos._exit(1)", "x\nerror: the code failed", 1),
        ("input()", "error: EOFError: EOF when reading a line", 1),
        ("import numpy", "error: ModuleNotFoundError: No module named 'numpy'", 1),
        ("class A:\n    def __repr__(self): raise ValueError('no')\nA()", "error: ValueError: no", 1),
        ("'\\ud800'", "'\\ud800'", 0),
        ("print('\\ud800')", "error: UnicodeEncodeError", 1),
    ],
)
def test_what_it_prints_and_the_last_value_or_the_error(code: str, text: str, errors: int) -> None:
    content, failed = ran(code)
    assert content.startswith(text)
    assert text or content == ""
    assert failed == errors


@needs_sandbox
def test_each_call_starts_anew() -> None:
    assert ran("y = 3\nopen('/tmp/kept', 'w').write('x')") == ("1", 0)
    assert ran("y")[0] == "error: NameError: name 'y' is not defined"
    assert ran("import os\nos.path.exists('/tmp/kept')") == ("False", 0)


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("open('/etc/passwd').read()", "error: FileNotFoundError"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 53), 2)", "error: OSError: [Errno 101]"),
        ("import os\nlen(os.environ)", None),
        ("open('/usr/x', 'w')", "error: OSError: [Errno 30]"),
    ],
)
def test_nothing_of_the_machine_is_in_reach(code: str, line: str | None) -> None:
    content, failed = ran(code)
    if line is None:
        assert int(content) <= 6  # what the sandbox sets
    else:
        assert content.startswith(line)
        assert failed == 1


@needs_sandbox
def test_a_flood_is_cut() -> None:
    content, failed = ran("print('a' * 3_000_000)")
    assert len(content) <= 1000
    assert "characters cut …]" in content
    assert failed == 0


@needs_sandbox
def test_code_longer_than_the_limit_is_not_run() -> None:
    assert ran("#" * 100_001) == ("error: the code is longer than 100000 characters", 1)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "timeout_s", "lines"),
    [
        ("while True: pass", 1, ["error: it took more than 1 s of CPU time", "error: it did not end within 1 s"]),
        ("import time\ntime.sleep(1000)", 1, ["error: it did not end within 1 s"]),
        ("x = 'a' * 10**9", 20, ["error: MemoryError"]),
        (
            "while True: print('flood' * 1000)",
            20,
            ["error: OSError: [Errno 2", "error: the code failed"],  # its /tmp is full: the error cannot be written
        ),
        ("import os\nwhile True: os.fork()", 20, ["error: BlockingIOError: [Errno 11]", "error: it "]),
    ],
)
def test_its_limits(code: str, timeout_s: float, lines: list[str]) -> None:
    """On a busy machine the wall clock may end code before its CPU time does."""
    content, failed = ran(code, timeout_s)
    assert any(line in content for line in lines)
    assert failed == 1


def test_without_a_sandbox_the_tool_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without: Any = find_sandbox.__wrapped__
    monkeypatch.setattr("vigneron.environments.python_tool.find_sandbox", without)
    with pytest.raises(UserError) as error:
        tool_environment(["python"], QWEN)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("environment.tools: the tool 'python': code is only run in a sandbox")
    assert "Install bubblewrap" in str(error.value)
    with pytest.raises(UserError, match=r"^the tool 'python': code is only run"):
        python_tool(1.0)
