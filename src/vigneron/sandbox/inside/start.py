"""The start of a process in the sandbox."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def confine(limits: dict[str, int]) -> None:
    """Set hard resource limits, which the code cannot raise. Lower limits of the machine stay."""
    import resource

    for name, limit in limits.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        _, most = resource.getrlimit(which)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(which, (limit, limit))


def take_pipes() -> tuple[Callable[[], bytes], Callable[[bytes], None]]:
    """Functions that receive and send a line. The standard streams become /dev/null."""
    lines = os.fdopen(os.dup(0), "rb")
    channel, write, leave = os.dup(1), os.write, os._exit
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    def receive() -> bytes:
        line = lines.readline()
        if not line:
            leave(0)
        return line

    def send(line: bytes) -> None:
        while line:
            line = line[write(channel, line) :]

    return receive, send
