"""What is scored, and what a scoring flow says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Answered:
    """A question with a response to it."""

    question: str
    """As a person reads it."""
    response: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """The dataset's columns, the prompt among them."""


@dataclass(frozen=True)
class Verdict:
    """Reasoning Ψ, score τ and confidence φ (`rlmt-grape` 5a), or why there is no score: that is missing, never 0."""

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
    """Scores the samples of one item. A failure is a `Verdict.missing`, and an exception only where the user's own file
    or code is broken."""

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody else, so that sampling can go on meanwhile."""
        ...

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]: ...
