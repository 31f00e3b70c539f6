"""How a sandbox is started: its files, system calls, limits and containers; without one, code is refused."""

import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.sandboxed import ADD, item, needs_sandbox
from vigneron.errors import UserError
from vigneron.rewards.graders.code import CodeGrader
from vigneron.rewards.rubric_build import Graders
from vigneron.sandbox import backends, runner, testers
from vigneron.sandbox.backends import REFUSED, SOCKET, Container, Limits, seccomp_filter
from vigneron.sandbox.runner import PythonTest, find_sandbox, run_test

pytestmark = pytest.mark.slow


def test_packages_beside_python_are_not_in_the_sandbox(tmp_path: Path) -> None:
    for folder in ("lib/python3.11/site-packages/project", "lib/python3.11/json", "src/app", "lib/app"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib/libpython3.11.so.1.0").touch()
    wanted = [str(tmp_path / "lib" / name) for name in ("python3.11", "libpython3.11.so.1.0")]
    assert backends.python_files(str(tmp_path)) == wanted
    assert str(tmp_path / "lib/python3.11/site-packages") in backends.packages(str(tmp_path))
    command = backends.Bubblewrap("bwrap", "/python", str(tmp_path)).command(Limits(), None)
    bound = [command[at + 1] for at, word in enumerate(command) if word.startswith("--ro-bind")]
    assert set(bound) - {"/python", *wanted} <= {
        *backends.SYSTEM_LIBRARIES,
        "/etc/ld.so.cache",
        "/lib",
        "/lib32",
        "/lib64",
    }


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
    monkeypatch.setattr(backends, "EXIT_WAIT_S", 0.5)  # the stand-in removes no container
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


@pytest.mark.parametrize("own", [backends.Bubblewrap("bwrap", "/python", "/usr"), Container("docker")])
def test_the_code_and_its_test_get_the_hard_limits_of_their_sandbox(
    own: backends.Sandbox, monkeypatch: pytest.MonkeyPatch
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
