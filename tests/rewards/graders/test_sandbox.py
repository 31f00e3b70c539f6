"""Code in a sandbox: what tests say of it, and what of the machine it can reach."""

import socket
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.sandboxed import ADD, graded, item, needs_sandbox, scorer
from vigneron.errors import UserError
from vigneron.rewards.graders.code import CodeGrader, python_code
from vigneron.sandbox import runner
from vigneron.sources.verdict import GraderInput, Verdict
from vigneron.threads import cores

pytestmark = pytest.mark.slow

DATACLASS = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"


@needs_sandbox
def test_the_score_is_the_share_of_tests_that_pass() -> None:
    tests = ["assert add(1, 2) == 3", "assert add(1, 1) == 3", "assert add('a', 'b') == 'ab'\nassert add([], []) == []"]
    verdict = graded(f"Here:\n```python\n{ADD}```\n", *tests)
    assert (verdict.score, verdict.confidence) == (2 / 3, 1.0)
    assert verdict.reasoning == "2 of 3 tests pass; test 2: `add(1, 1)` is wrong"
    assert "3" not in verdict.reasoning.split("test 2")[1]  # what is expected is not told


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "test", "score"),
    [
        (ADD, "def check(candidate):\n    assert candidate(2, 2) == 4\ncheck(add)", 1),
        (ADD, "def check(candidate):\n    assert candidate(2, 2) == 5\ncheck(add)", 0),
        (ADD, "def test_sum():\n    assert add(2, 2) == 5", 0),
        (ADD, "for n in range(3):\n    assert add(n, 0) == n", 1),
        (ADD, "for n in range(3):\n    assert add(n, 0) in (0, 1)", 0),
        (ADD, "try:\n    assert add(1, 1) == 3\nexcept AssertionError:\n    pass\nelse:\n    raise ValueError", 1),
        (ADD, "assert add(1, 2) is None", 0),
        ("def one(x):\n    return 1", "assert one(2) is True", 0),
        ("def one(x):\n    return 1", "assert one(2) == True", 1),
        ("x = {1: {2, 3}}, b'a', None, 2j, 1e999", "assert x == ({1: {3, 2}}, b'a', None, 2j, 1e999)", 1),
        ("from collections import *\nc = Counter('aab')", "assert c == {'a': 2, 'b': 1}", 1),
        ("from collections import *\np = namedtuple('P', 'x y')(1, 2)", "assert p == (1, 2)\nassert p < (1, 3)", 1),
        (DATACLASS, "assert P(1) == P(1)\nassert P(2) != P(1)\nassert P(1).x in (1, 2)", 1),
        (DATACLASS, "assert P(1) == 1", 0),
        (ADD, "assert 0.1 > abs(add(1, 1.5) - 2.5)\nassert 3 == add(1, 2)\nassert add('a', 'b') in 'xaby'", 1),
        (ADD, "assert 3 < add(1, 2)", 0),
        (ADD, "assert add('a', 'b') < 3", 0),
        ("big = 1 << 40000", "assert big == 1 << 40000\nassert big % 7 == 4", 0),
        ("import sys\nif __name__ == '__main__':\n    sys.exit(input())\nx = 1", "assert x == 1", 1),
        ("x = 1\nraise RuntimeError('no\\nmore')", "assert x == 1", 0),
        ("def broken(:", "assert x == 1", 0),
        ("x = 1\0", "assert x == 1", 0),
        ("x = '\udc80'", "assert x == 1", 0),
        ("", "assert x == 1", 0),
    ],
)
def test_one_test(code: str, test: str, score: float) -> None:
    verdict = graded(code, test)
    assert verdict.score == score
    assert "\n" not in verdict.reasoning


@needs_sandbox
def test_samples_are_scored_in_order_with_their_own_tests_and_rows_without_are_missing() -> None:
    rows: list[Any] = ["assert add(1, 1) == 2", ["assert add(1, 1) == 3"], None, [], "  ", "assert ("]
    verdicts = scorer()([GraderInput("q", ADD, {"tests": row}) for row in rows])
    assert [verdict.score for verdict in verdicts] == [1, 0, None, None, None, None]
    assert verdicts[-1].why is not None
    assert "test 1 of the row tests nothing: it is not Python" in verdicts[-1].why


@needs_sandbox
def test_a_column_that_is_absent_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match=r"^item 'it', tests: a row has no column 'tests' \(did you mean 'test'\?\)"):
        scorer()([GraderInput("q", ADD, {"test": "x"})])


@needs_sandbox
def test_a_row_with_malformed_tests_is_missing_with_one_notice_and_stops_nothing() -> None:
    notices: list[str] = []
    grader = CodeGrader(item(), notice=notices.append)
    rows: list[Any] = [[1], 7, {"inputs": ["1"], "outputs": []}, "assert add(1, 1) == 2"]
    rows += [{"inputs": [[1]], "outputs": [1], "fn_name": name} for name in ("f()", "g()")]
    verdicts = grader([GraderInput("q", ADD, {"tests": row}) for row in rows])
    assert [verdict.score for verdict in verdicts] == [None, None, None, 1, None, None]
    assert verdicts[-1].why == "the row's tests are malformed: fn_name is not a name"
    assert [text.split(": ")[2].split(" (")[0] for text in notices] == [
        "column 'tests' is neither a string nor a list of strings, nor inputs with outputs",
        "a test needs as many inputs as outputs",
        "fn_name is not a name",
    ]


@needs_sandbox
def test_of_more_than_100_tests_the_first_are_run_with_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vigneron.rewards.graders.code.run_test", lambda *_: runner.SandboxResult("passed"))
    notices: list[str] = []
    grader = CodeGrader(item(), notice=notices.append)
    verdicts = grader([GraderInput("q", ADD, {"tests": ["assert add(1, 1) == 2"] * n}) for n in (100, 101, 140)])
    assert [verdict.reasoning for verdict in verdicts] == ["100 of 100 tests pass"] * 3
    assert notices == ["item 'it', tests: of rows with more than 100 tests only the first 100 are run"]


TRIED = """
def tried(what, *given):
    try:
        return what(*given)
    except BaseException as error:
        return type(error).__name__
"""


@needs_sandbox
def test_nothing_of_the_machine_can_be_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-very-secret-0123456789"
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text(secret)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    monkeypatch.setenv("HOME", str(tmp_path))
    read = TRIED + (
        "import os\ndef read(path):\n    return tried(lambda: open(path, 'rb').read())\n"
        "def do(name, *given):\n    return tried(getattr(os, name), *given)\n"
        "def environment():\n    return sorted(os.environ)\n"
    )
    absent = [key, "/etc/shadow", "/etc/passwd", Path(__file__), Path.cwd() / "pyproject.toml", "/root", "/home"]
    absent += ["/usr/src", "/usr/share/doc", "/usr/bin/sh", "/bin/sh", "/usr/local/src"]
    tests = ["\n".join(f"assert read({str(path)!r}) == 'FileNotFoundError'" for path in absent)]
    tests += [
        "assert environment() == ['HOME', 'LANG', 'PATH', 'PWD', 'PYTHONHASHSEED']",
        f"assert ({secret.encode()!r} in read('/proc/1/environ')) == False",
        f"assert ({secret.encode()!r} in read('/proc/self/environ')) == False",
        "assert do('mkdir', '/x') == 'OSError'\nassert do('mkdir', '/usr/x') == 'OSError'",
        "assert do('mkdir', '/dev/x') == 'OSError'\nassert do('listdir', '/sys') == 'FileNotFoundError'",
        "assert do('listdir', '/tmp') == []\nassert do('getcwd') == '/tmp'",
        "assert do('setuid', 0) in ('OSError', 'PermissionError')",
        "assert [p for p in do('listdir', '/proc') if p.isdigit()] == ['1', '2']",
        # The sandbox of the tests: a test is data.
        "import os\nassert tried(os.mkdir, '/x') == 'OSError'\n"
        "assert tried(os.listdir, '/root') == 'FileNotFoundError'",
        "import os\nassert tried(os.listdir, '/tmp') == [] and 'OPENAI_API_KEY' not in os.environ",
    ]
    verdict = graded(read, *tests)
    assert verdict.score == 1, (verdict.reasoning, verdict.why)


@needs_sandbox
def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        code = TRIED + f"import socket\ndef connect():\n    socket.create_connection({address!r}, 0.3)\n"
        verdict = graded(
            code,
            "assert tried(connect) in ('ConnectionRefusedError', 'OSError')",
            "assert tried(socket.getaddrinfo, 'example.com', 80) == 'gaierror'",
            "assert tried(socket.create_connection, ('1.1.1.1', 53), 0.3) == 'OSError'",
            "assert tried(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM) in ('PermissionError', 'OSError')",
        )
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert verdict.score == 1, verdict.reasoning


@needs_sandbox
@given(st.text(st.characters(), max_size=60))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_response_scores_0_or_1_and_the_same_alone_or_with_others(response: str) -> None:
    samples = [GraderInput("q", text, {"tests": "assert add(1, 2) == 3"}) for text in (response, ADD)]
    alone, together = scorer()(samples[:1]), scorer()(samples[::-1])
    assert together == [Verdict(1.0, reasoning="1 of 1 tests pass"), alone[0]]
    assert alone[0].score == 0


@needs_sandbox
@pytest.mark.skipif(cores() == 1, reason="one sample at a time with one core")
def test_the_code_grader_works_on_several_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples wait for each other, which one after the other could not."""
    both, alone = Barrier(2), CodeGrader._verdict

    def together(self: CodeGrader, *arguments: Any) -> Verdict:
        both.wait(60)
        return alone(self, *arguments)

    monkeypatch.setattr(CodeGrader, "_verdict", together)
    assert [verdict.score for verdict in scorer()([GraderInput("q", "x = 1", {"tests": "assert x == 1"})] * 2)] == [
        1,
        1,
    ]
    assert scorer().overlaps


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("x = 1", "x = 1"),
        ("Text\n```python\nx = 1\n```\nand\n```python\ny = 2\n```", "x = 1"),
        ("```\nls\n```\n```Py\nx = 1\n```", "x = 1"),
        ("```json\n{}\n```\nthen\n```\nx = 1\n```", "x = 1"),
        ("```json\n{}\n```\nand words", "```json\n{}\n```\nand words"),
        ("```python\nx = 1", "x = 1"),
        ("1. So:\n   ```python3\n   if x:\n       y\n   ```", "if x:\n    y"),
        ("```x``` is inline", "```x``` is inline"),
    ],
)
def test_the_code_of_a_response(response: str, code: str) -> None:
    assert python_code(response) == code
