"""What a sandbox uses, seen from outside of it."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vigneron.rewards.graders.sandbox import children_of


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
