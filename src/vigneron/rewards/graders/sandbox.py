"""Where an answer's code runs: bubblewrap, or a container. Where neither works, code is not run at all.

Inside there is no network, no home, no environment, and nothing to write to but a small /tmp; the hard limits are set
by `inside.py` before any code of an answer is read. The interpreter is the one that runs Vigneron, without its packages
and without the virtual environment it may stand in: its installation is bound read-only. Where the sandbox cannot reach
that (root gives up its rights before it starts one, and may keep its Python under /root), it is the system's python3.
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
# The clock's limit is so many times the limit of CPU time, and so much more: an answer that waits for a core, because
# the machine has other things to do, must not meet it.
CLOCK_TIMES, CLOCK_MORE_S = 10, 5.0
# So much later than any limit a container ends by itself, should nobody be left to end it.
CONTAINER_MORE_S = 60
LAST_S = 5.0
PYTHON_OPTIONS = ("-s", "-S", "-B")


@dataclass(frozen=True)
class Limits:
    """`timeout_s` is CPU time of all processes together, from when Python runs in the sandbox, for the code with one
    test. What sleeps uses none, and is ended by the clock, `clock_s` after the same moment.

    In a container, whose processes cannot be seen from outside, the kernel ends each process by its own CPU time."""

    timeout_s: float = 5.0
    memory_mb: int = 512
    """Of each process, and of all together."""
    processes: int = 32
    disk_mb: int = 64

    @property
    def clock_s(self) -> float:
        return CLOCK_TIMES * self.timeout_s + CLOCK_MORE_S

    def hard(self) -> dict[str, int]:
        """As the kernel names them."""
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
class Running:
    """A sandbox that was started; its pipes go to `inside.py`."""

    process: subprocess.Popen[bytes]
    container: tuple[str, str] | None = None
    """The program and the container's name."""

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        """Its standard input, output and error."""
        found = self.process.stdin, self.process.stdout, self.process.stderr
        return cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", found)

    def end(self) -> None:
        """With all that runs in it. Bubblewrap is left to wait for its first process, which goes after all others."""
        if self.container is not None:
            program, name = self.container
            subprocess.run([program, "rm", "--force", name], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        for child in children_of(self.process.pid) if self.container is None else ():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            self.process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...
    def start(self, limits: Limits) -> Running: ...


@dataclass(frozen=True)
class Bubblewrap:
    program: str
    python: str
    prefix: str | None
    """Python's installation, where it is not under /usr."""

    @property
    def name(self) -> str:
        return f"bubblewrap with {self.python}"

    def start(self, limits: Limits) -> Running:
        filter_program = seccomp_filter()
        read, write = os.pipe()
        try:
            os.write(write, filter_program or b"")
            os.close(write)
            command = self.command(limits, None if filter_program is None else read)
            # Its environment can be read inside, under /proc/1: it gets none. The kernel counts no processes of root's.
            unprivileged: dict[str, Any] = {}
            if os.geteuid() == 0:
                unprivileged = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            return Running(_started(command, env={}, cwd="/", pass_fds=(read,), **unprivileged))
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
            # After /tmp: it may stand there.
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

    def start(self, limits: Limits) -> Running:
        name = f"vigneron-{secrets.token_hex(8)}"
        return Running(_started(self.command(limits, name)), (self.program, name))

    def command(self, limits: Limits, name: str) -> list[str]:
        disk = f"rw,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
        # Not the number of processes: that would be counted over all containers.
        hard = {name: limit for name, limit in limits.hard().items() if name != "NPROC"}
        return [
            *(self.program, "run", "--rm", "--interactive", "--init", "--name", name, "--pull", "never"),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(limits.processes)),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--shm-size", f"{limits.disk_mb}m", "--tmpfs", f"/tmp:{disk}", "--workdir", "/tmp"),
            *("--env", "PYTHONHASHSEED=0", "--env", "HOME=/tmp", "--log-driver", "none"),
            *(IMAGE, "timeout", "-s", "KILL", str(ceil(limits.clock_s) + CONTAINER_MORE_S), *_inside("python3", hard)),
        ]


def children_of(pid: int) -> list[int]:
    """Of all its threads. Linux only."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _inside(python: str, hard: dict[str, int]) -> list[str]:
    source = resources.files("vigneron.rewards.graders").joinpath("inside.py").read_text(encoding="utf-8")
    return [python, *PYTHON_OPTIONS, "-c", source, json.dumps(hard)]


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C ends a run at the step's end, and must not look like code that died."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, **options)


@dataclass(frozen=True)
class Used:
    memory: int
    cpu_s: float


def used_by(pid: int) -> Used:
    """Bytes of memory that a process and all that came of it hold for themselves, and the CPU time they took, those
    that have ended too. Linux only."""
    memory, ticks, waiting = 0, 0, [pid]
    while waiting:
        process = waiting.pop()
        with suppress(OSError):
            # Before its children are listed: one that ends meanwhile is left out this time, and never counted twice.
            ticks += sum(int(each) for each in _stat(process)[11:15])
        waiting += children_of(process)
        with suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    memory += int(line.split()[1]) * 1024
    return Used(memory, ticks / os.sysconf("SC_CLK_TCK"))


def _stat(pid: int) -> list[str]:
    """From the state on: the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
