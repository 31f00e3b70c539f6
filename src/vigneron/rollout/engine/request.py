"""What is asked of a sampler, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.draws import Sampling
from vigneron.policy.model import Policy


@dataclass(frozen=True)
class Request:
    """One completion for each prompt; without `sampling`, greedily. Equal `sample_ids`, equal draws."""

    prompt_ids: Sequence[Sequence[int]]
    max_new_tokens: int
    sampling: Sampling | None
    seed: int
    step: int
    sample_ids: Sequence[int]
    tokens_at_once: int
    """Prompt tokens that go through the model in one pass."""


@dataclass(frozen=True)
class Completions:
    """What was sampled. A completion ends with its end token; one cut by the length limit has none.

    `behaviour_BT` are log-probs of the distribution sampled from, `prompt_hidden_BH` the state after each prompt,
    which a critic may read; None where the sampler cannot tell.
    """

    ids_BT: Int[Tensor, "B T"]
    lengths_B: Int[Tensor, " B"]
    behaviour_BT: Float[Tensor, "B T"]
    truncated_B: Bool[Tensor, " B"]
    prompt_hidden_BH: Float[Tensor, "B H"] = None  # type: ignore[assignment]
    figures: dict[str, float] = field(default_factory=dict)
    """What the sampler has to say of the step."""

    def trimmed(self) -> "Completions":
        """Without columns that nobody has filled."""
        width = int(self.lengths_B.max())
        return replace(self, ids_BT=self.ids_BT[:, :width], behaviour_BT=self.behaviour_BT[:, :width])


class Sampler(Protocol):
    @property
    def exact(self) -> bool:
        """Whether its log-probs are the policy's own, to rounding."""

    @property
    def notice(self) -> str | None:
        """What the user should know of how it samples."""

    def sample(self, request: Request) -> Completions: ...


def blank_completions(request: Request, policy: Policy) -> Completions:
    count, width, device = len(request.prompt_ids), request.max_new_tokens, policy.device
    dtype = torch.float64 if policy.causal.dtype == torch.float64 else torch.float32
    return Completions(
        torch.full((count, width), policy.pad_id, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
        torch.zeros(count, width, dtype=dtype, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, policy.hidden_size, dtype=dtype, device=device),
    )
