"""Results of a contestant: times, and what was done in them."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.measure import Measurement, Phase
from benchmarks.turns.work import NO_WAIT, Pace


@dataclass(frozen=True)
class Counts:
    """Of one step, over all samples."""

    samples: int
    turns: int
    calls: int
    """As the tool itself counted them."""
    full: int
    """Samples of as many turns as are allowed."""
    prompts: int
    """Tokens of the prompts, each once for every sample."""
    sampled: int
    """Tokens that the model wrote, and is trained on."""
    replies: int
    """Tokens between its turns: the tool's answers, and the template around them."""


@dataclass(frozen=True)
class Result:
    measurement: Measurement
    counts: tuple[Counts, ...]
    """One for each measured step."""
    machine: str

    @property
    def name(self) -> str:
        return self.measurement.contestant

    def per_sample(self, what: str) -> float:
        return sum(getattr(step, what) for step in self.counts) / sum(step.samples for step in self.counts)

    def seconds_per_token(self, *, phase: Phase | None = None, replies: bool = False) -> float:
        """Of whole steps, or of a phase: seconds by sampled tokens, or by all tokens behind the prompts; the median."""
        seconds = self.measurement.phase_seconds[phase] if phase else self.measurement.step_seconds
        return statistics.median(
            took / (step.sampled + replies * step.replies) for step, took in zip(self.counts, seconds, strict=True)
        )

    def value(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, value: dict[str, Any]) -> "Result":
        return cls(
            Measurement.of(value["measurement"]), tuple(Counts(**step) for step in value["counts"]), value["machine"]
        )


def by_wait(measurement: Measurement, counts: Sequence[Counts], pace: Pace, on: str) -> list[Result]:
    """The steps whose tool waited, and those whose tool answered at once, as two results."""
    parts = {NO_WAIT: slice(0, pace.no_wait), "": slice(pace.no_wait, pace.steps)}
    return [
        Result(
            replace(
                measurement,
                contestant=measurement.contestant + ending,
                step_seconds=measurement.step_seconds[part],
                phase_seconds={name: times[part] for name, times in measurement.phase_seconds.items()},
            ),
            tuple(counts[pace.warmups :][part]),
            on,
        )
        for ending, part in parts.items()
        if measurement.step_seconds[part]
    ]
