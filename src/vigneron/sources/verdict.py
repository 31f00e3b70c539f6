"""The input and the output of a grader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class GraderInput:
    """A question and the response to score."""

    question: str
    """Without chat template."""
    response: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """The dataset's columns, including the prompt."""


@dataclass(frozen=True)
class Verdict:
    """Reasoning Ψ, score τ and confidence φ (`rlmt-grape` 5a). `score` None is missing, never 0; `why` says the reason.

    The field names are keys of the sample records on disk.
    """

    score: float | None
    confidence: float = 1.0
    reasoning: str = ""
    critique: str = ""
    why: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0

    @classmethod
    def missing(cls, why: str, *, critique: str = "", tokens_in: int = 0, tokens_out: int = 0) -> "Verdict":
        return cls(None, 0.0, critique=critique, why=why, tokens_in=tokens_in, tokens_out=tokens_out)


class Grader(Protocol):
    """Scores samples for one rubric item. A failure is a `Verdict.missing`; only broken user files or user code
    raise."""

    @property
    def overlaps(self) -> bool:
        """Whether sampling can continue while it scores."""
        ...

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]: ...
