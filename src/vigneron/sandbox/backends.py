"""The sandboxes that run a response's code: bubblewrap or a container. Without either, code is not run.

Inside there is no network, home or environment, and only a small /tmp is writable; the programs in `inside/` set hard
limits before they read any code. The interpreter is the one that runs Vigneron, without its packages and virtual
environment, bound read-only. If the sandbox cannot read that (root drops its privileges first, and root's Python may
be under its home), it is the system's python3.
"""

import json
import os
import platform
import secrets
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast

# The architecture's AUDIT_ARCH number, and its index in the tuples of call numbers.
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
REFUSED = {
    "shmget": (29, 194),
    "msgget": (68, 186),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
}
SOCKET = (41, 198)
FAMILIES = (1, 2, 10)
"""Unix, IPv4, IPv6: confined by the sandbox's network namespace."""
# Calls of the x32 ABI have numbers from here on.
X32 = 0x40000000

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """A classic BPF program; None for an unknown architecture."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, column = known
    steps: list[tuple[int, int, str, str]] = [
        (LOAD, ARCHITECTURE_AT, "next", "next"),
        (EQUAL, architecture, "next", "kill"),
        (LOAD, NUMBER_AT, "next", "next"),
        (AT_LEAST, X32, "refuse", "next"),
        *((EQUAL, numbers[column], "refuse", "next") for numbers in REFUSED.values()),
        (EQUAL, SOCKET[column], "next", "allow"),
        (LOAD, FIRST_ARGUMENT_AT, "next", "next"),
        *((EQUAL, family, "allow", "next") for family in FAMILIES),
    ]
    ends = {"refuse": NOT_PERMITTED, "allow": ALLOW, "kill": KILL}
    places = {name: len(steps) + i for i, name in enumerate(ends)}
    program = b""
    for at, (code, value, *ways) in enumerate(steps):
        # Jump offsets are relative to the next instruction.
        program += struct.pack("=HBBI", code, *(places.get(way, at + 1) - at - 1 for way in ways), value)
    return program + b"".join(struct.pack("=HBBI", RETURN, 0, 0, value) for value in ends.values())


NOBODY = 65534
MIB = 2**20
IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
# The wall-clock limit is CLOCK_FACTOR times the CPU limit plus CLOCK_EXTRA_S, so that code that waits for a core on a
# busy machine does not reach it. It starts again with each message, because a test may make thousands of calls; all of
# them together have TOTAL_FACTOR times that limit.
CLOCK_FACTOR, CLOCK_EXTRA_S = 10, 5.0
TOTAL_FACTOR = 5
# A container ends itself this long after the limit for the whole test, in case this process is gone.
CONTAINER_EXTRA_S = 60
EXIT_WAIT_S = 5.0
PYTHON_OPTIONS = ("-s", "-S", "-B")
INSIDE = "vigneron.sandbox.inside"
Program = Literal["answer", "tester"]
_BORDER = ("plain", "remote", "state", "border", "start")
_TESTER = ("refused", "names", "rewrite", "pytest_names", "class_checks", "tester_peer", "tester")
PROGRAMS: dict[Program, tuple[str, ...]] = {"answer": (*_BORDER, "answer"), "tester": (*_BORDER, *_TESTER)}
"""Their modules, each after those that it imports."""
# The modules come as an argument: their files are not in the sandbox.
BOOT = f"""
import sys
part = type(sys)
name = ""
for each in {INSIDE!r}.split("."):
    name += "." * bool(name) + each
    sys.modules[name] = part(name)
for each, source in zip(sys.argv[2::2], sys.argv[3::2]):
    module = sys.modules[name + "." + each] = part(name + "." + each)
    setattr(sys.modules[name], each, module)
    exec(compile(source, each, "exec", 0, True), vars(module))
module.main(sys.argv[1])
"""


@dataclass(frozen=True)
class Limits:
    """`timeout_s` is the CPU time of all processes for the code with one test, counted after Python has started. Code
    that sleeps is stopped by the wall-clock limits: `clock_s` without a message, `total_s` for the whole test.

    The processes of a container cannot be observed from outside: there the kernel limits each process's CPU time."""

    timeout_s: float = 5.0
    memory_mb: int = 512
    """For each process, and for all together."""
    processes: int = 32
    disk_mb: int = 64
    wall_s: float | None = None
    """A wall-clock limit of its own, for the whole run; None: by the CPU limit."""

    @property
    def clock_s(self) -> float:
        return CLOCK_FACTOR * self.timeout_s + CLOCK_EXTRA_S if self.wall_s is None else self.wall_s

    @property
    def total_s(self) -> float:
        return TOTAL_FACTOR * self.clock_s if self.wall_s is None else self.wall_s

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
    """A started sandbox; its pipes are those of a program in `inside/`."""

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
    @property
    def keeps_testers(self) -> bool:
        """Whether a sandbox of tests is used for more than one test."""
        ...

    def start(self, limits: Limits, program: Program = "answer") -> RunningSandbox: ...
    def hard(self, limits: Limits) -> dict[str, int]:
        """The limits that a process inside sets for itself."""
        ...


SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo")
"""Not the rest of /usr: a project may be under /usr/src or /usr/local."""
MAX_LIBRARIES = 64


@cache
def python_files(prefix: str) -> list[str]:
    """What Python needs of an installation outside of the system's folders: its modules and shared libraries."""
    if prefix == "/usr":
        return []
    libraries = [path for folder in ("lib", "lib64") for path in sorted(Path(prefix, folder).glob("*.so*"))]
    modules = [path for folder in ("lib", "lib64") for path in sorted(Path(prefix, folder).glob("python3*"))]
    if len(libraries) > MAX_LIBRARIES:  # conda: some hundred
        return [str(path) for folder in ("lib", "lib64") if (path := Path(prefix, folder)).is_dir()]
    return [str(path) for path in (*modules, *libraries) if path.exists()]


@cache
def packages(prefix: str) -> list[str]:
    """Folders of installed packages, hidden in the sandbox: they may be a project's own."""
    roots = [Path(place, folder) for place in {prefix, "/usr"} for folder in ("lib", "lib64")]
    roots = [root for root in roots if not root.is_symlink()]
    found = [path for root in roots for name in ("site", "dist") for path in root.glob(f"python3*/{name}-packages")]
    return sorted({str(path) for path in (*found, Path("/usr/lib/node_modules")) if path.is_dir()})


@dataclass(frozen=True)
class Bubblewrap:
    program: str
    python: str
    prefix: str
    """Python's installation."""

    @property
    def name(self) -> str:
        return f"bubblewrap with {self.python}"

    @property
    def keeps_testers(self) -> bool:
        return True

    def hard(self, limits: Limits) -> dict[str, int]:
        return limits.hard()

    def start(self, limits: Limits, program: Program = "answer") -> RunningSandbox:
        filter_program = seccomp_filter()
        read, write = os.pipe()
        try:
            os.write(write, filter_program or b"")
            os.close(write)
            command = self.command(limits, None if filter_program is None else read, program)
            # Without an environment, which could be read inside under /proc/1. The process limit does not apply to
            # root.
            unprivileged: dict[str, Any] = {}
            if os.geteuid() == 0:
                unprivileged = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            return RunningSandbox(_started(command, env={}, cwd="/", pass_fds=(read,), **unprivileged))
        finally:
            os.close(read)

    def command(self, limits: Limits, filter_fd: int | None, program: Program = "answer") -> list[str]:
        options = [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
            *("--new-session", "--die-with-parent", "--clearenv"),
            *("--setenv", "PATH", "/usr/bin", "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LANG", "C.UTF-8"),
            *("--setenv", "HOME", "/tmp"),
            *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        ]
        for folder in SYSTEM_LIBRARIES:
            options += ["--ro-bind-try", folder, folder]
        for folder in ("/lib", "/lib32", "/lib64"):
            if os.path.islink(folder):
                options += ["--symlink", os.readlink(folder), folder]
            else:
                options += ["--ro-bind-try", folder, folder]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for folder, share in (("/dev/shm", 4), ("/tmp", 1)):
            options += ["--size", str(limits.disk_mb * MIB // share), "--tmpfs", folder]
        for path in (self.python, *python_files(self.prefix)):
            # After /tmp, because they may be under it.
            options += ["--ro-bind", path, path]
        for folder in packages(self.prefix):
            options += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
        options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
        if filter_fd is not None:
            options += ["--seccomp", str(filter_fd)]
        return [self.program, *options, "--", *_inside(self.python, program, self.hard(limits))]


@dataclass(frozen=True)
class Container:
    program: str

    @property
    def name(self) -> str:
        return f"{Path(self.program).name} with {IMAGE}"

    @property
    def keeps_testers(self) -> bool:
        """A container ends itself after a while, and its memory is limited from the start."""
        return False

    def hard(self, limits: Limits) -> dict[str, int]:
        """Without NPROC, which would count the processes of all containers."""
        return {name: limit for name, limit in limits.hard().items() if name != "NPROC"}

    def start(self, limits: Limits, program: Program = "answer") -> RunningSandbox:
        name = f"vigneron-{secrets.token_hex(8)}"
        return RunningSandbox(_started(self.command(limits, name, program)), (self.program, name))

    def command(self, limits: Limits, name: str, program: Program = "answer") -> list[str]:
        disk = f"rw,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
        return [
            *(self.program, "run", "--rm", "--interactive", "--init", "--name", name, "--pull", "never"),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(limits.processes)),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--shm-size", f"{limits.disk_mb}m", "--tmpfs", f"/tmp:{disk}", "--workdir", "/tmp"),
            *("--env", "PYTHONHASHSEED=0", "--env", "HOME=/tmp", "--log-driver", "none"),
            *(
                IMAGE,
                "timeout",
                "-s",
                "KILL",
                str(ceil(limits.total_s) + CONTAINER_EXTRA_S),
                *_inside("python3", program, self.hard(limits)),
            ),
        ]


def children_of(pid: int) -> list[int]:
    """The child processes of all its threads. Linux only."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (thread / "children").read_text().split()]
    return children


def _inside(python: str, program: Program, hard: dict[str, int]) -> list[str]:
    hard = hard if program == "answer" else {}  # each test has its own
    return [python, *PYTHON_OPTIONS, "-c", BOOT, json.dumps(hard), *_sources(program)]


@cache
def _sources(program: Program) -> list[str]:
    """Names and sources of the modules that the program consists of, the program last."""
    folder = resources.files(INSIDE)
    named = [(name, folder.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in PROGRAMS[program]]
    return [text for pair in named for text in pair]


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
