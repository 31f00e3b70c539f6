"""Run contestants in separate processes; for one that fails, print the end of its output."""

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
        """Wait for the process; None if it succeeded, else the reason, with its last lines on stderr."""
        try:
            status = self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            return f"not done after {LONGEST_S} s"
        finally:  # also if we are interrupted: a leftover process would disturb the next measurement
            self.process.kill()
        if status == 0:
            return None
        lines = self.log.read_text(errors="replace").splitlines()
        print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr, flush=True)
        return f"exit status {status}: {lines[-1] if lines else 'no output'}"


def start(module: str, place: Path, **options: Any) -> Running:
    """`python -m benchmarks.MODULE --option value …`; its output goes to a file in `place`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    log = place / f"{module}.log"
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", f"benchmarks.{module}", *given]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    return Running(module, process, log)


def environment() -> dict[str, str]:
    """Work offline: everything is local, and requests to the hub would only wait."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
