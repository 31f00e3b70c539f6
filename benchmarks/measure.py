"""Timing of a contestant: warm-up steps, measured steps, phases, peak memory, and the machine."""

import json
import platform
import resource
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.device_memory import watch_device
from benchmarks.work import Work
from vigneron.rollout.engine import cuda_memory
from vigneron.threads import cores

GB = 1e9
FEWEST_STEPS = 5

Phase = Literal["sampling", "reference+reward", "update"]
UPDATE: Phase = "update"
PHASES: tuple[Phase, ...] = ("sampling", "reference+reward", UPDATE)


@dataclass(frozen=True)
class Measurement:
    """One contestant on one work, as saved in JSON."""

    work: str
    contestant: str
    samples: int
    tokens: int
    step_seconds: tuple[float, ...]
    phase_seconds: dict[str, tuple[float, ...]]
    peak_bytes: int
    settings: dict[str, Any] = field(default_factory=dict)
    """The contestant's settings."""
    memory: dict[str, int] = field(default_factory=dict)
    """`reserved`: peak GPU memory reserved by torch, with the sampler's cache, which it does not count; `device`: peak
    of the whole process, as the driver counts it; ours also has that of the update."""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = "unknown"

    @property
    def seconds(self) -> float:
        return statistics.median(self.step_seconds)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def spread(self) -> tuple[float, float]:
        """Samples per second of the slowest and of the fastest step."""
        return self.samples / max(self.step_seconds), self.samples / min(self.step_seconds)

    def phases(self) -> dict[str, float]:
        """Median seconds of each phase."""
        return {name: statistics.median(values) for name, values in self.phase_seconds.items()}

    def save(self, path: Path) -> None:
        """Append to a file of JSON lines: a process may measure several things."""
        with path.open("a") as file:
            file.write(json.dumps(asdict(self)) + "\n")

    @classmethod
    def of(cls, kept: dict[str, Any]) -> "Measurement":
        phases = {name: tuple(seconds) for name, seconds in kept["phase_seconds"].items()}
        return cls(**{**kept, "step_seconds": tuple(kept["step_seconds"]), "phase_seconds": phases})


class Memory:
    """The peak since `reset`: on a GPU what torch allocated, with the sampler's cache, on a CPU the process's resident
    set."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._whole = watch_device()

    def reset(self) -> None:
        self._forget()

    def peak(self) -> int:
        if self._on_gpu:
            return cuda_memory.peak_held_bytes()[0]
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            scale = 1 if platform.system() == "Darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

    def reserved(self) -> int:
        """GPU memory reserved by torch, with that of CUDA graphs and gaps between tensors, and the sampler's cache."""
        return cuda_memory.peak_held_bytes()[1] if self._on_gpu else 0

    def device(self) -> dict[str, int]:
        """Memory of the whole process."""
        return self._whole.peaks() if self._on_gpu else {}

    def taken(self, held: int) -> dict[str, int]:
        """Memory of a step above that held between steps (weights, gradients, optimizer)."""
        return {"held": held, "update_above": torch.cuda.max_memory_reserved() - held} if self._on_gpu else {}

    def _forget(self) -> None:
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            cuda_memory.reset_peak_held()
            self._whole.reset()
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak
        except OSError:
            return  # elsewhere the peak is that of the whole process


class Recorder:
    """`with recorder.phase(name)` around the parts of a step, `recorder.end_step()` after it: True when it is enough.

    The time of an inner phase is not counted in the outer one. Time outside all phases counts as update.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._phases: dict[str, list[float]] = defaultdict(list)
        self._this_step: dict[str, float] = defaultdict(float)
        self._open: list[str] = [UPDATE]
        self._steps: list[float] = []
        self._done = 0
        self.memory = Memory(work.device)
        self._began = self._since = self.now()

    def begin(self) -> None:
        """The first step begins: what came before is not counted."""
        self.memory.reset()
        self._began = self._since = self.now()

    def now(self) -> float:
        """The time after synchronizing with the device."""
        if self._work.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        yield
        self._charge()
        self._open.pop()

    def charge(self, name: Phase, seconds: float) -> None:
        """Add time of this step that was measured elsewhere."""
        self._charge()
        self._this_step[name] += seconds
        self._this_step[UPDATE] -= seconds

    def _charge(self) -> float:
        """Add the time since the last change of phase to the open phase."""
        now = self.now()
        self._this_step[self._open[-1]] += now - self._since
        self._since = now
        return now

    def end_step(self) -> bool:
        now = self._charge()
        if self._done >= self._work.warmups:
            self._steps.append(now - self._began)
            for name in PHASES:
                self._phases[name].append(self._this_step[name])
        self._done += 1
        self._this_step.clear()
        if self._done == self._work.warmups:
            self.memory.reset()
        self._began = self._since = self.now()
        return enough(self._steps, self._work)

    def finish(self, contestant: str, settings: dict[str, Any], memory: dict[str, int] | None = None) -> Measurement:
        return Measurement(
            self._work.name,
            contestant,
            self._work.samples,
            self._work.tokens,
            tuple(self._steps),
            {name: tuple(seconds) for name, seconds in self._phases.items()},
            self.memory.peak(),
            settings,
            {"reserved": self.memory.reserved(), **self.memory.device(), **(memory or {})},
            versions(),
            commit(),
        )


def enough(step_seconds: Sequence[float], work: Work) -> bool:
    """Whether all steps are measured, or at least five and the time limit is reached."""
    if len(step_seconds) >= work.steps:
        return True
    return len(step_seconds) >= FEWEST_STEPS and sum(step_seconds) > work.patience_s


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "trl", "vllm", "vigneron"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the checkout, marked if it has changes; `unknown` outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(device: str) -> str:
    """A description of the machine for a table's caption."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{_processor()}, {cores()} cores"


def _processor() -> str:
    arm = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    keys = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    part = keys.get("CPU part", "")
    return keys.get("model name") or arm.get(part) or f"{platform.machine()} {part}".strip()
