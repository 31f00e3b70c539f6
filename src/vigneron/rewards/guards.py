"""Guards for a semantic reward. An embedding likes echoes, repetition and shuffled words more than a reader does."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.rewards.text import length_ratio, repetition
from vigneron.sources.embedders import Embedder


@dataclass(frozen=True)
class Guards:
    """For rewards that are not negative, which those of the forms `clip` and `shift` are."""

    input_weight: float = 0.0
    max_length_ratio: float | None = None
    max_repetition: float | None = None
    second: Embedder | None = None

    def without_echo(self, scores_B: Float[Tensor, " B"], echo_B: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """R − w · R(input), not below 0; both by the same embedder."""
        return (scores_B - self.input_weight * echo_B).clamp(min=0.0) if self.input_weight else scores_B

    def gated(
        self, scores_B: Float[Tensor, " B"], children: Sequence[str], parents: Sequence[str]
    ) -> Float[Tensor, " B"]:
        """Nothing for a text that is too long or repeats itself; what is missing stays missing."""
        passed = [self._passes(child, parent) for child, parent in zip(children, parents, strict=True)]
        return torch.where(torch.tensor(passed) | scores_B.isnan(), scores_B, 0.0)

    def _passes(self, child: str, parent: str) -> bool:
        return (self.max_length_ratio is None or length_ratio(child, parent) <= self.max_length_ratio) and (
            self.max_repetition is None or repetition(child) <= self.max_repetition
        )
