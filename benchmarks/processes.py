"""Run contestants in separate processes; for one that fails, print the end of its output."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_S = 1800.0
LAST_LINES = 30


@dataclass(frozen=True)
class Running:
    module: str
    process: subprocess.Popen[bytes]
    log: Path

    def failure(self, longest_s: float = LONGEST_S) -> str | None:
        """Wait for the process; None if it succeeded, else the reason, with its last lines on stderr."""
        try:
            status = self.process.wait(longest_s)
            reason = f"exit status {status}"
        except subprocess.TimeoutExpired:
            status, reason = 1, f"not done after {longest_s:.0f} s"
        finally:  # also if we are interrupted: a leftover process, vLLM's own too, would disturb the next measurement
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if status == 0:
            return None
        lines = self.log.read_text(errors="replace").splitlines()
        print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr, flush=True)
        told = [line for line in lines if "Error:" in line] or lines or ["no output"]
        return f"{reason}: {told[-1]}"


@dataclass(frozen=True)
class Budget:
    """Seconds for one contestant, and for all together."""

    each_s: float = LONGEST_S
    all_s: float = float("inf")
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.all_s - (time.monotonic() - self.began)

    @property
    def next_s(self) -> float:
        """The time limit of the next contestant."""
        return min(self.each_s, self.left_s)

    @property
    def spent(self) -> bool:
        return self.left_s <= 0


def start(module: str, place: Path, **options: Any) -> Running:
    """`python -m benchmarks.MODULE --option value …`; its output goes to a file in `place`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    log = place / f"{module}.log"
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", f"benchmarks.{module}", *given]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Running(module, process, log)


def environment() -> dict[str, str]:
    """Work offline: everything is local, and requests to the hub would only wait. vLLM samples with PyTorch, because
    FlashInfer's sampler is compiled first, which takes minutes. Triton would take CC for the compiler. Python keeps
    what it compiles, as by default: else every start compiles each module again."""
    left_out = ("CC", "PYTHONDONTWRITEBYTECODE")
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    return {"VLLM_USE_FLASHINFER_SAMPLER": "0", **given, "HF_HUB_OFFLINE": "1"}
