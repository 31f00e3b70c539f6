"""`--nproc`: start the ranks of one machine as separate processes. For several machines use torchrun."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import typer

from vigneron.config import Config
from vigneron.distributed.stop_signals import handled_signals
from vigneron.errors import UserError
from vigneron.threads import cores

# Seconds that the other ranks have to exit by themselves after one has failed.
EXIT_TIMEOUT_S = 15.0
# When a rank is lost, torch's C++ libraries log a page of text before our one-line error.
QUIET_TORCH = {"TORCH_CPP_LOG_LEVEL": "FATAL"}


def launch(arguments: Sequence[str], count: int) -> int:
    """Run this command in `count` processes. Returns the exit code of rank 0, or of the rank that failed.

    The first signal is forwarded to rank 0, which stops the other ranks; a second signal goes to all ranks.
    """
    if "WORLD_SIZE" in os.environ:
        raise UserError("--nproc: WORLD_SIZE is already set by a launcher: leave out --nproc under torchrun")
    with tempfile.TemporaryDirectory(prefix="vigneron-ranks-") as place:
        folder = Path(place)
        processes = [_start(arguments, rank, count, folder) for rank in range(count)]
        with _SignalForwarder(processes) as forwarder:
            return _wait(processes, folder, forwarder)


def _start(arguments: Sequence[str], rank: int, count: int, folder: Path) -> "subprocess.Popen[bytes]":
    env = {
        "OMP_NUM_THREADS": str(max(1, cores() // count)),
        **({} if "--debug" in arguments else QUIET_TORCH),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "VIGNERON_RENDEZVOUS": f"file://{folder}/rendezvous",
    }
    command = [sys.executable, "-m", "vigneron", *arguments]
    if rank == 0:
        return subprocess.Popen(command, env=env, start_new_session=True)
    with (folder / f"rank-{rank}").open("wb") as stderr:
        return subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=stderr)


class _SignalForwarder:
    def __init__(self, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
        self._processes = processes
        self.first_signal: int | None = None

    def __enter__(self) -> "_SignalForwarder":
        self._before = {number: signal.signal(number, self._forward) for number in handled_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        for process in self._processes if self.first_signal else self._processes[:1]:
            if process.poll() is None:
                process.send_signal(number)
        self.first_signal = self.first_signal or number


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", folder: Path, forwarder: _SignalForwarder) -> int:
    while True:
        codes = [process.poll() for process in processes]
        # After a signal, ranks that save nothing exit before rank 0 does.
        good = {0, None, 128 + (forwarder.first_signal or 0)}
        failed = next((rank for rank, code in enumerate(codes) if code not in good), None)
        if failed is not None:
            break
        if None not in codes:
            return codes[0] or 0
        time.sleep(0.05)
    _stop(processes)
    code = processes[failed].returncode
    _report_failure(failed, code, folder)
    return code if code > 0 else 128 - code


def _stop(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait for the other ranks, which exit when they lose the connection; kill those that do not."""
    for act in (lambda process: None, subprocess.Popen.kill):
        until = time.monotonic() + EXIT_TIMEOUT_S
        for process in processes:
            if process.poll() is None:
                act(process)
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            time.sleep(0.05)


def _report_failure(rank: int, code: int, folder: Path) -> None:
    """Print the signal and the end of the rank's stderr. Rank 0 has printed its own error."""
    if code < 0:
        typer.echo(f"error: rank {rank} was killed by {signal.Signals(-code).name}", err=True)
    if rank > 0:
        text = (folder / f"rank-{rank}").read_text(encoding="utf-8", errors="replace").rstrip()
        if text:
            typer.echo("\n".join(f"rank {rank}: {line}" for line in text.splitlines()[-40:]), err=True)


def check_ranks(config: Config, total: int) -> None:
    """Raise if the config cannot be trained by `total` ranks. Called before they are started."""
    shard = config.scale.shard
    samples = config.prompts_per_step * config.group_size
    if total > samples:
        raise UserError(
            f"{total} ranks have only {samples} samples per step (prompts_per_step × group_size): start fewer ranks"
        )
    if total % shard:
        raise UserError(
            f"scale.shard: {total} {'rank is' if total == 1 else 'ranks are'} not a multiple of {shard}, the number of "
            f"ranks that share one copy of the weights: start {shard} or a multiple (--nproc {shard}), or set "
            "scale.shard=1"
        )


def resume_command(path: Path, shard: int) -> str:
    """The command that resumes the run in `path` with its number of shards."""
    return f"vigneron resume {shlex.quote(str(path))}" + (f" --nproc {shard}" if shard > 1 else "")
