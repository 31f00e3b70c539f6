"""`--nproc`: the ranks of one machine as processes of their own. Of several machines, torchrun is the launcher."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import typer

from vigneron.errors import UserError

# What a rank may take to end by itself when another one has ended.
PATIENCE_S = 15.0
# What torch's libraries say themselves, but for what ends them: when a rank is lost, a page before our line.
QUIET = {"TORCH_CPP_LOG_LEVEL": "FATAL"}


def launch(arguments: Sequence[str], count: int) -> int:
    """Run this command in `count` processes; the exit code of the first, or of the one that failed.

    Signals go to the first rank, which tells the others; a second one goes to all.
    """
    if "WORLD_SIZE" in os.environ:
        raise UserError("--nproc: a launcher has set WORLD_SIZE already: leave --nproc out under torchrun")
    with tempfile.TemporaryDirectory(prefix="vigneron-ranks-") as place:
        processes = [_begun(arguments, rank, count, Path(place)) for rank in range(count)]
        with _Forwarding(processes) as forwarding:
            return _waited_for(processes, Path(place), forwarding)


def _begun(arguments: Sequence[str], rank: int, count: int, place: Path) -> "subprocess.Popen[bytes]":
    cores = os.cpu_count() or 1
    env = {
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        **({} if "--debug" in arguments else QUIET),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "VIGNERON_RENDEZVOUS": f"file://{place}/rendezvous",
    }
    command = [sys.executable, "-m", "vigneron", *arguments]
    if rank == 0:
        return subprocess.Popen(command, env=env, start_new_session=True)
    with (place / f"rank-{rank}").open("wb") as said:
        return subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=said)


class _Forwarding:
    def __init__(self, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
        self._processes = processes
        self.asked: int | None = None
        """The first signal that was forwarded."""

    def __enter__(self) -> "_Forwarding":
        self._before = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        for process in self._processes if self.asked else self._processes[:1]:
            if process.poll() is None:
                process.send_signal(number)
        self.asked = self.asked or number


def _waited_for(processes: "Sequence[subprocess.Popen[bytes]]", place: Path, forwarding: _Forwarding) -> int:
    while True:
        codes = [process.poll() for process in processes]
        # Asked to stop, a rank that has nothing to save is gone before the one that has.
        good = {0, None, 128 + (forwarding.asked or 0)}
        failed = next((rank for rank, code in enumerate(codes) if code not in good), None)
        if failed is not None:
            break
        if None not in codes:
            return codes[0] or 0
        time.sleep(0.05)
    _end(processes)
    code = processes[failed].returncode
    _say(failed, code, place)
    return code if code > 0 else 128 - code


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """The others notice by themselves; who does not is ended."""
    for ask in (lambda process: None, subprocess.Popen.kill):
        until = time.monotonic() + PATIENCE_S
        for process in processes:
            if process.poll() is None:
                ask(process)
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            time.sleep(0.05)


def _say(rank: int, code: int, place: Path) -> None:
    """The first rank has spoken for itself; another has where it could."""
    if code < 0:
        typer.echo(f"error: rank {rank} was ended by {signal.Signals(-code).name}", err=True)
    if rank > 0:
        text = (place / f"rank-{rank}").read_text(encoding="utf-8", errors="replace").rstrip()
        if text:
            typer.echo("\n".join(f"rank {rank}: {line}" for line in text.splitlines()[-40:]), err=True)
