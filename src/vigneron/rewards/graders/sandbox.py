"""The sandboxes that run a response's code: bubblewrap or a container. Without either, code is not run.

Inside there is no network, home or environment, and only a small /tmp is writable; `inside.py` sets hard limits before
it reads any code. The interpreter is the one that runs Vigneron, without its packages and virtual environment, bound
read-only. If the sandbox cannot read that (root drops its privileges first, and root's Python may be under its home),
it is the system's python3.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from math import ceil
from pathlib import Path
from typing import IO, Any, Protocol, cast

from vigneron.rewards.graders.seccomp import seccomp_filter

NOBODY = 65534
MIB = 2**20
IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
# The wall-clock limit is CLOCK_FACTOR times the CPU limit plus CLOCK_EXTRA_S, so that code that waits for a core on a
# busy machine does not reach it.
CLOCK_FACTOR, CLOCK_EXTRA_S = 10, 5.0
# A container ends itself this long after its wall-clock limit, in case this process is gone.
CONTAINER_EXTRA_S = 60
EXIT_WAIT_S = 5.0
PYTHON_OPTIONS = ("-s", "-S", "-B")


@dataclass(frozen=True)
class Limits:
    """`timeout_s` is the CPU time of all processes for the code with one test, counted after Python has started. Code
    that sleeps is stopped by the wall-clock limit `clock_s`.

    The processes of a container cannot be observed from outside: there the kernel limits each process's CPU time."""

    timeout_s: float = 5.0
    memory_mb: int = 512
    """For each process, and for all together."""
    processes: int = 32
    disk_mb: int = 64

    @property
    def clock_s(self) -> float:
        return CLOCK_FACTOR * self.timeout_s + CLOCK_EXTRA_S

    def hard(self) -> dict[str, int]:
        """By the kernel's names (RLIMIT_…)."""
        return {
            "AS": self.memory_mb * MIB,
            "CPU": ceil(self.timeout_s) + 1,
            "NPROC": self.processes,
            "FSIZE": self.disk_mb * MIB,
            "NOFILE": 64,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }


@dataclass(frozen=True)
class RunningSandbox:
    """A started sandbox; its pipes are those of `inside.py`."""

    process: subprocess.Popen[bytes]
    container: tuple[str, str] | None = None
    """The container program and the container's name."""

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        """Its standard input, output and error."""
        pipes = self.process.stdin, self.process.stdout, self.process.stderr
        return cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", pipes)

    def end(self) -> None:
        """Kill everything in it. Bubblewrap then waits for its first process, which ends last."""
        if self.container is not None:
            program, name = self.container
            subprocess.run([program, "rm", "--force", name], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        for child in children_of(self.process.pid) if self.container is None else ():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            self.process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...
    def start(self, limits: Limits) -> RunningSandbox: ...


@dataclass(frozen=True)
class Bubblewrap:
    program: str
    python: str
    prefix: str | None
    """Python's installation, if it is not under /usr."""

    @property
    def name(self) -> str:
        return f"bubblewrap with {self.python}"

    def start(self, limits: Limits) -> RunningSandbox:
        filter_program = seccomp_filter()
        read, write = os.pipe()
        try:
            os.write(write, filter_program or b"")
            os.close(write)
            command = self.command(limits, None if filter_program is None else read)
            # Without an environment, which could be read inside under /proc/1. The process limit does not apply to
            # root.
            unprivileged: dict[str, Any] = {}
            if os.geteuid() == 0:
                unprivileged = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            return RunningSandbox(_started(command, env={}, cwd="/", pass_fds=(read,), **unprivileged))
        finally:
            os.close(read)

    def command(self, limits: Limits, filter_fd: int | None) -> list[str]:
        options = [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
            *("--new-session", "--die-with-parent", "--clearenv"),
            *("--setenv", "PATH", "/usr/bin", "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LANG", "C.UTF-8"),
            *("--setenv", "HOME", "/tmp"),
            *("--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        ]
        for folder in ("/bin", "/lib", "/lib32", "/lib64"):
            if os.path.islink(folder):
                options += ["--symlink", os.readlink(folder), folder]
            else:
                options += ["--ro-bind-try", folder, folder]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for folder, share in (("/dev/shm", 4), ("/tmp", 1)):
            options += ["--size", str(limits.disk_mb * MIB // share), "--tmpfs", folder]
        if self.prefix is not None:
            # After /tmp, because it may be under it.
            options += ["--ro-bind", self.prefix, self.prefix]
        options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
        if filter_fd is not None:
            options += ["--seccomp", str(filter_fd)]
        return [self.program, *options, "--", *_inside(self.python, limits.hard())]


@dataclass(frozen=True)
class Container:
    program: str

    @property
    def name(self) -> str:
        return f"{Path(self.program).name} with {IMAGE}"

    def start(self, limits: Limits) -> RunningSandbox:
        name = f"vigneron-{secrets.token_hex(8)}"
        return RunningSandbox(_started(self.command(limits, name)), (self.program, name))

    def command(self, limits: Limits, name: str) -> list[str]:
        disk = f"rw,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
        # NPROC would count the processes of all containers.
        hard = {name: limit for name, limit in limits.hard().items() if name != "NPROC"}
        return [
            *(self.program, "run", "--rm", "--interactive", "--init", "--name", name, "--pull", "never"),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(limits.processes)),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--shm-size", f"{limits.disk_mb}m", "--tmpfs", f"/tmp:{disk}", "--workdir", "/tmp"),
            *("--env", "PYTHONHASHSEED=0", "--env", "HOME=/tmp", "--log-driver", "none"),
            *(IMAGE, "timeout", "-s", "KILL", str(ceil(limits.clock_s) + CONTAINER_EXTRA_S), *_inside("python3", hard)),
        ]


def children_of(pid: int) -> list[int]:
    """The child processes of all its threads. Linux only."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (thread / "children").read_text().split()]
    return children


def _inside(python: str, hard: dict[str, int]) -> list[str]:
    source = resources.files("vigneron.rewards.graders").joinpath("inside.py").read_text(encoding="utf-8")
    return [python, *PYTHON_OPTIONS, "-c", source, json.dumps(hard)]


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """In a new session: Ctrl-C ends the run after the step and must not kill code under test."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, **options)


@dataclass(frozen=True)
class ResourceUsage:
    memory: int
    cpu_s: float


def resource_usage(pid: int) -> ResourceUsage:
    """Private memory in bytes and CPU time of a process and its descendants, CPU time of ended ones included. Linux
    only."""
    memory, ticks, waiting = 0, 0, [pid]
    while waiting:
        process = waiting.pop()
        with suppress(OSError):
            # Read before the children are listed, so that a child that ends meanwhile is not counted twice.
            ticks += sum(int(each) for each in _stat(process)[11:15])
        waiting += children_of(process)
        with suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    memory += int(line.split()[1]) * 1024
    return ResourceUsage(memory, ticks / os.sysconf("SC_CLK_TCK"))


def _stat(pid: int) -> list[str]:
    """The fields from the state on; the name before it may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
