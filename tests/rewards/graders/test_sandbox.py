"""Code in a sandbox: what tests say of it, what it cannot forge, and faults that must leave the machine unharmed."""

import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.hostile_code import FAULTS, REASONS, TOO_LONG
from support.sandboxed import needs_sandbox
from vigneron.errors import UserError
from vigneron.rewards.graders import runner, sandbox, testers
from vigneron.rewards.graders.code import CodeGrader, cores, python_code
from vigneron.rewards.graders.pipes import SandboxPipes
from vigneron.rewards.graders.runner import PythonTest, find_sandbox, run_test
from vigneron.rewards.graders.sandbox import REFUSED, SOCKET, Container, Limits, seccomp_filter
from vigneron.rewards.rubric_build import Graders
from vigneron.rubric.model import CodeItem
from vigneron.sources.verdict import GraderInput, Verdict

pytestmark = pytest.mark.slow

ADD = "def add(a, b):\n    return a + b\n"
DATACLASS = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"


def item(**options: Any) -> CodeItem:
    return CodeItem(name="it", description="d", flow="code", **options)


@cache
def scorer(**options: Any) -> CodeGrader:
    return CodeGrader(item(**options))


def graded(code: str, *tests: str, **options: Any) -> Verdict:
    (verdict,) = scorer(**options)([GraderInput("q", code, {"tests": list(tests)})])
    return verdict


# Limits that no other sandbox has.
OWN_MB = random.randrange(200, 500)


@pytest.fixture
def nothing_left() -> Iterator[dict[str, Any]]:
    """After the test no process runs under its limits."""
    yield {"memory_mb": OWN_MB}
    mark = f'"AS": {OWN_MB * 2**20}'.encode()
    until = time.monotonic() + 20
    while (left := _with(mark)) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []


def _with(mark: bytes) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


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


@needs_sandbox
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_contained_and_scores_0_with_its_reason(
    fault: str, nothing_left: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.6 if REASONS[fault] in (TOO_LONG, None) or fault == "sleeps" else 5.0
    if fault == "sleeps":
        hurried(monkeypatch)
    begun = time.monotonic()
    verdict = graded(FAULTS[fault], "assert add(1, 2) == 3", "assert True", timeout_s=limit, **nothing_left)
    assert time.monotonic() - begun < limit + 10
    assert (verdict.score, verdict.why) == (0.0, None)
    assert verdict.reasoning.startswith("the code fails before any test: ")
    assert (REASONS[fault] or "") in verdict.reasoning
    assert len(verdict.reasoning) < 400


@needs_sandbox
def test_a_fault_in_one_test_leaves_the_others_what_they_earned(nothing_left: dict[str, Any]) -> None:
    code = "def add(a, b):\n    while a < 0:\n        pass\n    return a + b"
    verdict = graded(
        code, "assert add(1, 2) == 3", "assert add(-1, 2) == 1", "assert add(0, 2) == 2", timeout_s=1.0, **nothing_left
    )
    assert verdict.score == 2 / 3
    assert verdict.reasoning == "2 of 3 tests pass; test 2: it took more than 1 s of CPU time"


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ends after twice the CPU time."""
    monkeypatch.setattr(sandbox, "CLOCK_FACTOR", 2)
    monkeypatch.setattr(sandbox, "CLOCK_EXTRA_S", 0.0)


def test_the_clock_is_generous() -> None:
    assert (Limits(2.0).clock_s, Limits(2.0).total_s) == (25, 125)


@needs_sandbox
@pytest.mark.parametrize(
    ("calls", "end", "why"), [(20, "passed", ""), (100, "test failed", "it did not end within 75 s")]
)
def test_the_clock_limits_the_time_without_a_message(
    calls: int, end: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second passes with each message, and no time otherwise; the limit is 15 s."""
    now = [0.0]
    send = SandboxPipes.send

    def slow_send(pipes: SandboxPipes, line: bytes) -> None:
        now[0] += 1
        send(pipes, line)

    monkeypatch.setattr(SandboxPipes, "send", slow_send)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    test = PythonTest(f"for n in range({calls}):\n    assert add(n, 1) == n + 1")
    result = run_test(find_sandbox(), Limits(1.0), ADD, test)
    assert (result.end, result.why, result.clock_timeout) == (end, why, end != "passed")
    assert now[0] > Limits(1.0).clock_s


@needs_sandbox
def test_an_answer_that_sleeps_twice_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried(monkeypatch)
    code = "import time\ndef add(a, b):\n    time.sleep(100 * a)\n    return a + b"
    tests = ["assert add(0, 1) == 1", *["assert add(1, 1) == 2"] * 8, "assert add(0, 2) == 2"]
    verdict = graded(code, *tests, timeout_s=0.4)
    assert verdict.score == 1 / 10
    slept = "it did not end within 0.8 s"
    assert verdict.reasoning == f"1 of 10 tests pass; test 2: {slept}; test 3: {slept}; test 4: not run"


WORKS = """
import time
def work():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
    return 3
"""


@needs_sandbox
@pytest.mark.slow
def test_a_right_answer_on_a_busy_machine_is_right() -> None:
    """As the reward asks: several items and parts of a step at once."""
    samples = [GraderInput("q", WORKS, {"tests": "assert work() == 3"})] * 4
    with ThreadPoolExecutor(4) as parts:
        found = list(parts.map(scorer(timeout_s=0.8), [samples] * 4))
    assert found == [[Verdict(1.0, reasoning="1 of 1 tests pass")] * 4] * 4
    assert sum(thread.name.startswith("code-") for thread in threading.enumerate()) <= cores()


@needs_sandbox
def test_time_without_a_core_does_not_count(nothing_left: dict[str, Any]) -> None:
    """Held still for longer than its limit while it works."""
    grader = scorer(timeout_s=0.8, **nothing_left)
    with ThreadPoolExecutor(1) as aside:
        found = aside.submit(grader, [GraderInput("q", WORKS, {"tests": "assert work() == 3"})])
        while not (python := [pid for pid in _with(b'"AS": %d' % (OWN_MB * 2**20)) if not _is_bubblewrap(pid)]):
            time.sleep(0.01)
        time.sleep(0.2)
        for signal_number, wait_s in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.0)):
            for pid in python:
                os.kill(pid, signal_number)
            time.sleep(wait_s)
        assert [verdict.score for verdict in found.result()] == [1.0]


def _is_bubblewrap(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "bwrap"


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


def test_packages_beside_python_are_not_in_the_sandbox(tmp_path: Path) -> None:
    for folder in ("lib/python3.11/site-packages/project", "lib/python3.11/json", "src/app", "lib/app"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib/libpython3.11.so.1.0").touch()
    wanted = [str(tmp_path / "lib" / name) for name in ("python3.11", "libpython3.11.so.1.0")]
    assert sandbox.python_files(str(tmp_path)) == wanted
    assert str(tmp_path / "lib/python3.11/site-packages") in sandbox.packages(str(tmp_path))
    command = sandbox.Bubblewrap("bwrap", "/python", str(tmp_path)).command(Limits(), None)
    bound = [command[at + 1] for at, word in enumerate(command) if word.startswith("--ro-bind")]
    assert set(bound) - {"/python", *wanted} <= {
        *sandbox.SYSTEM_LIBRARIES,
        "/etc/ld.so.cache",
        "/lib",
        "/lib32",
        "/lib64",
    }


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
def test_the_code_grader_waits_and_works_on_several_samples_at_once() -> None:
    samples = [GraderInput("q", "import time\ntime.sleep(4)\nx = 1", {"tests": "assert x == 1"})] * 2
    begun = time.monotonic()
    assert [verdict.score for verdict in scorer()(samples)] == [1, 1]
    assert scorer().overlaps
    assert cores() == 1 or time.monotonic() - begun < 7.9


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


@pytest.mark.parametrize(("machine", "column", "architecture"), [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)])
def test_the_filter_by_running_its_program(machine: str, column: int, architecture: int) -> None:
    program = seccomp_filter(machine)
    assert program is not None
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]

    def verdict(number: int, argument: int = 0, of: int = architecture) -> int:
        data = struct.pack("=IIQQ", number, of, 0, argument)
        at = value = 0
        while True:
            code, if_true, if_false, constant = steps[at]
            at += 1
            if code == 0x20:
                (value,) = struct.unpack_from("=I", data, constant)
            elif code == 0x06:
                return constant
            else:
                at += if_true if (value == constant if code == 0x15 else value >= constant) else if_false

    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    refused = {numbers[column] for numbers in REFUSED.values()}
    for number in range(500):
        wanted = refuse if number in refused else allow
        assert verdict(number, 1) == wanted
    assert [verdict(SOCKET[column], family) for family in (1, 2, 10, 16, 38, 40)] == [allow] * 3 + [refuse] * 3
    assert verdict(0x40000000 + 39) == refuse
    assert verdict(0, of=0x40000003) == kill
    assert seccomp_filter("vax") is None


def test_without_a_sandbox_code_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)  # root gives up its rights before it starts one
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("vigneron.rewards.graders.code.find_sandbox", find_sandbox.__wrapped__)
    for path, why in ((str(tmp_path / "none"), "neither bubblewrap nor"), (str(tmp_path), "No permissions to create")):
        monkeypatch.setattr(runner.shutil, "which", lambda name, path=path: _on(path, name))
        with pytest.raises(UserError, match=f"^item 'it': .*{why}.*apt install bubblewrap") as caught:
            CodeGrader(item())
        assert "\n" not in str(caught.value)


def _on(path: str, name: str) -> str | None:
    found = Path(path) / name
    return str(found) if found.exists() else None


SHIM = """#!{python}
import os, sys
given = sys.argv[1:]
with open({log!r}, "a") as log:
    print(" ".join(given if given[0] != "run" else given[: given.index("-c")]), file=log)
if given[0] == "run":
    os.execvp({python!r}, [{python!r}, *given[given.index("python3") + 1 :]])
"""


def test_a_container_is_started_with_its_limits_and_ended_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a container program here: a stand-in that runs the same command line, on code that does no harm."""
    monkeypatch.setattr(sandbox, "EXIT_WAIT_S", 0.5)  # the stand-in removes no container
    log, program = tmp_path / "log", tmp_path / "docker"
    program.write_text(SHIM.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    limits = Limits(memory_mb=300)
    for code, end in ((ADD, "passed"), ("import time\ntime.sleep(0)", "test failed")):
        assert run_test(Container(str(program)), limits, code, PythonTest("assert add(1, 2) == 3")).end == end
    lines = log.read_text().splitlines()
    runs = [line for line in lines if line.startswith("run ")]
    assert len(runs) == 4  # no container is used for a second test: it ends itself after a while
    for run in runs:
        for option in (
            "--memory 300m",
            "timeout -s KILL 335",
            "--network none",
            "--read-only",
            "--pids-limit 32",
            "--cap-drop ALL",
            "--rm",
        ):
            assert option in run
    names = [run.split("--name ")[1].split()[0] for run in runs]
    assert sorted(line for line in lines if line.startswith("rm")) == sorted(f"rm --force {name}" for name in names)


@pytest.mark.parametrize("own", [sandbox.Bubblewrap("bwrap", "/python", "/usr"), Container("docker")])
def test_the_code_and_its_test_get_the_hard_limits_of_their_sandbox(
    own: sandbox.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NPROC in a container would count the processes of all containers."""
    monkeypatch.setattr(type(own), "start", lambda *_: SimpleNamespace(container=None))
    sent: list[bytes] = []

    class Pipes:
        def __init__(self, running: Any) -> None:
            self.running = running

        def attach(self, selector: Any) -> None: ...
        def send(self, line: bytes) -> None:
            sent.append(line)

    monkeypatch.setattr(testers, "SandboxPipes", Pipes)
    tester = testers.Tester(own, Limits())
    tester.started = True
    answer: Any = Pipes(SimpleNamespace(container=None))
    runner._Session(answer, tester, Limits(), ADD, PythonTest("assert add(1, 1) == 2"))
    limits = json.loads(sent[0])["limits"]
    options: Any = "name" if isinstance(own, Container) else None
    assert json.dumps(limits) in own.command(Limits(), options)  # type: ignore[attr-defined]
    assert ("NPROC" in limits) is not isinstance(own, Container)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_is_held_at_a_fork_is_free_in_the_child() -> None:
    with testers._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if testers._lock.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_sandbox
def test_kept_sandboxes_end_with_the_graders() -> None:
    graders = Graders(None)
    graders(item())
    kept = [tester for (pid, _), idle in testers._idle.items() if pid == os.getpid() for tester in idle]
    assert kept
    graders.stop()
    assert not any(tester.alive() for tester in kept)
