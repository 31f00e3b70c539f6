"""Contestants run in processes of their own, quietly; of one that fails, the end of what it said is shown."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_S = 1800
LAST_LINES = 30


@dataclass(frozen=True)
class Running:
    module: str
    process: subprocess.Popen[bytes]
    log: Path

    def failure(self) -> str | None:
        """Wait for its end; None where it ended well, else why not, with its last lines on stderr."""
        try:
            status = self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            return f"not done after {LONGEST_S} s"
        finally:  # also where we are stopped ourselves: one left behind would disturb the next measurement
            self.process.kill()
        if status == 0:
            return None
        lines = self.log.read_text(errors="replace").splitlines()
        print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr, flush=True)
        return f"exit status {status}: {lines[-1] if lines else 'it said nothing'}"


def start(module: str, place: Path, **options: Any) -> Running:
    """`python -m benchmarks.MODULE --option value …`; what it says goes into a file in `place`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    log = place / f"{module}.log"
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", f"benchmarks.{module}", *given]
    with log.open("wb") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=subprocess.STDOUT)
    return Running(module, process, log)


def environment() -> dict[str, str]:
    """Everything is local, and a peer that asks the hub would wait for it."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
