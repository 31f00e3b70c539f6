"""The results of a comparison: measurements and the hardware floor, as a table, as ratios and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.floor import Ceilings, Shape, floor_seconds
from benchmarks.measure import GB, PHASES, UPDATE, Measurement
from benchmarks.models import model_config, model_folder
from benchmarks.parity import Parity
from benchmarks.prompts import prompt_token_ids
from benchmarks.records import Records
from benchmarks.work import SAMPLING, Work

EPISODES = 100_000
"""Episodes of a run in the PGSRM paper."""

HEADER = (
    "contestant",
    "samples/s",
    "slowest-fastest",
    "tokens/s",
    "s/step",
    *PHASES,
    "peak GB",
    "reserved",
    "process",
    "of floor",
    "steps",
)
SAMPLING_HEADER = ("sampling alone", "tokens/s", "slowest-fastest", "s/call", "of floor", "calls")


@dataclass(frozen=True)
class Comparison:
    work: Work
    machine: str
    ceilings: Ceilings
    floor: dict[str, float]
    """Seconds of each phase."""
    parity: Parity | None
    """None if only ours was run: then nothing is compared."""
    vocabulary: int
    measurements: tuple[Measurement, ...]
    failures: dict[str, str]
    """The error of each contestant that failed."""
    commit: str = "unknown"
    """The measured commit of Vigneron."""

    def of(self, contestant: str) -> Measurement | None:
        return next((m for m in self.measurements if m.contestant == contestant), None)

    @property
    def steps(self) -> tuple[Measurement, ...]:
        """Of contestants that do the whole step."""
        return tuple(m for m in self.measurements if SAMPLING not in m.contestant)

    @property
    def calls(self) -> tuple[Measurement, ...]:
        """Of contestants that only sample."""
        return tuple(m for m in self.measurements if SAMPLING in m.contestant)

    def rows(self) -> list[tuple[str, ...]]:
        return [_row(m, sum(self.floor.values())) for m in self.steps]

    def sampling_rows(self) -> list[tuple[str, ...]]:
        return [_sampling_row(m, self.floor["sampling"]) for m in self.calls]

    def ratios(self) -> Iterator[tuple[str, float]]:
        """Vigneron over each peer in samples per second, and in memory: our largest over the peer's smallest."""
        yield from self._step_ratios()
        yield from self._sampling_ratios()

    def _step_ratios(self) -> Iterator[tuple[str, float]]:
        ours = self.of("ours")
        if ours is None:
            return
        name = self.work.name
        peers = [m for m in self.steps if m is not ours] if self.parity is not None else []
        for peer in peers:
            yield f"{name}/{peer.contestant}", ours.samples_per_s / peer.samples_per_s
        for peer in peers:
            yield f"{name}/update/{peer.contestant}", peer.phases()[UPDATE] / ours.phases()[UPDATE]
        # Memory is compared with the first peer of the work.
        main = next((m for known in self.work.contestants for m in peers if m.contestant == known), None)
        if main is not None:
            # On a GPU our reserved memory, which CUDA graphs use, over the peer's allocated memory.
            most = ours.memory.get("reserved") or ours.peak_bytes
            yield f"{name}/memory", most / main.peak_bytes
            if main.memory.get("reserved"):
                yield f"{name}/reserved-memory", ours.memory["reserved"] / main.memory["reserved"]
            if "device" in ours.memory and "device" in main.memory:
                yield f"{name}/process-memory", ours.memory["device"] / main.memory["device"]
        yield f"{name}/floor", sum(self.floor.values()) / ours.seconds
        if "update_above" in ours.memory:
            logits = self.work.tokens * self.vocabulary * 4
            yield f"{name}/update-memory-over-logits", ours.memory["update_above"] / logits
        if self.work.memory_bars is not None:
            must, aim = self.work.memory_bars
            reserved = ours.memory["reserved"] / GB
            yield f"{name}/reserved-gb", reserved
            yield f"{name}/reserved-over-must", reserved / must
            yield f"{name}/reserved-over-aim", reserved / aim

    def _sampling_ratios(self) -> Iterator[tuple[str, float]]:
        ours = self.of("ours-sampling")
        if ours is None:
            return
        for peer in self.calls:
            if peer is not ours:
                yield f"{self.work.name}/sampling/{peer.contestant}", ours.tokens_per_s / peer.tokens_per_s
        yield f"{self.work.name}/sampling/floor", self.floor["sampling"] / ours.seconds

    def lines(self) -> list[str]:
        ceilings, floor = self.ceilings, self.floor
        parts = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in floor.items())
        lines = [
            *(self.parity.lines() if self.parity is not None else ()),
            f"{self.work.name} on {self.machine}",
            f"floor at {ceilings.bytes_per_s / 1e12:.3f} TB/s and {ceilings.flops_per_s / 1e12:.2f} TFLOP/s: {parts}",
            *(table(HEADER, self.rows()) if self.steps else ()),
            *(table(SAMPLING_HEADER, self.sampling_rows()) if self.calls else ()),
        ]
        ours = self.of("ours")
        if ours is not None and self.work.method == "actor_critic":
            lines.append(f"the paper's {EPISODES:,} episodes would take ours {EPISODES / ours.samples_per_s:.0f} s")
        lines += [f"FAILED {contestant}: {why}" for contestant, why in self.failures.items()]
        return [*lines, *(f"ratio {name} {value:.2f}" for name, value in self.ratios())]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({**asdict(self), "ratios": dict(self.ratios())}, indent=1))

    @classmethod
    def load(cls, path: Path) -> "Comparison":
        kept: dict[str, Any] = json.loads(path.read_text())
        work: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept["work"].items()}
        return cls(
            Work(**work),
            kept["machine"],
            Ceilings(**kept["ceilings"]),
            kept["floor"],
            Parity(**kept["parity"]) if kept["parity"] else None,
            kept["vocabulary"],
            tuple(Measurement.of(m) for m in kept["measurements"]),
            kept["failures"],
            kept.get("commit", "unknown"),
        )


def _row(found: Measurement, floor_seconds: float) -> tuple[str, ...]:
    slowest, fastest = found.spread
    phases = found.phases()
    return (
        found.contestant,
        f"{found.samples_per_s:.4g}",
        f"{slowest:.4g}-{fastest:.4g}",
        f"{found.tokens_per_s:.4g}",
        f"{found.seconds:.4g}",
        *(f"{phases[name]:.4g}" for name in PHASES),
        f"{found.peak_bytes / GB:.2f}",
        *(f"{found.memory[key] / GB:.2f}" if found.memory.get(key) else "-" for key in ("reserved", "device")),
        f"{floor_seconds / found.seconds:.1%}",
        str(len(found.step_seconds)),
    )


def _sampling_row(found: Measurement, floor_seconds: float) -> tuple[str, ...]:
    slowest, fastest = (rate * found.tokens / found.samples for rate in found.spread)
    return (
        found.contestant,
        f"{found.tokens_per_s:.4g}",
        f"{slowest:.4g}-{fastest:.4g}",
        f"{found.seconds:.4g}",
        f"{floor_seconds / found.seconds:.1%}",
        str(len(found.step_seconds)),
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]


def compared(work: Work, records: Records) -> Comparison | None:
    """Everything that is recorded of a work; None if nothing was measured or failed."""
    measured = dict(records.of("measurement", work.name))
    failures = {name: value["why"] for name, value in records.of("failure", work.name)}
    rates = records.get("ceilings", work.device, work.dtype)
    if rates is None or not (measured or failures):
        return None
    config, ceilings = model_config(work.model), Ceilings(rates["bytes_per_s"], rates["flops_per_s"])
    floor = floor_seconds(work, Shape.of(config), ceilings, prompt_length(work))
    parity = records.get("parity", ", ".join(work.parity_key))
    # In the order of the work, then the others.
    names = dict.fromkeys([*(name for name in work.contestants if name in measured), *measured])
    found = tuple(Measurement.of(measured[name]) for name in names)
    return Comparison(
        work,
        rates["machine"],
        ceilings,
        floor,
        Parity(**parity) if parity is not None else None,
        config.vocab_size,
        found,
        failures,
        ", ".join(dict.fromkeys(m.commit for m in found)) or "unknown",
    )


def prompt_length(work: Work) -> float:
    """Tokens of a prompt, on average."""
    from transformers import AutoTokenizer

    if work.prompt_tokens is not None:
        return work.prompt_tokens
    prompts = prompt_token_ids(work, AutoTokenizer.from_pretrained(model_folder(work.model)))
    return sum(len(ids) for ids in prompts) / len(prompts)
