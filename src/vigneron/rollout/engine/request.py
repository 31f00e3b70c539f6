"""The interface of samplers: a request, its completions, and the Sampler protocol."""

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
    """One completion per prompt, greedy without `sampling`. Equal `sample_ids` give equal draws."""

    prompt_ids: Sequence[Sequence[int]]
    max_new_tokens: int
    sampling: Sampling | None
    seed: int
    step: int
    sample_ids: Sequence[int]
    microbatch_tokens: int
    """Maximum prompt tokens in one prefill pass."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, or a turn."""
    replies: "Replies | None" = None
    """What answers each turn of a conversation. `max_new_tokens` is then the length of a turn, and a completion has all
    turns with the replies between them."""
    max_tokens: int | None = None
    """The longest completion with its replies."""
    context: int | None = None
    """The longest prompt with its completion; None: as long as it is."""
    turn: int = 0
    """The turn that is sampled, where each is a request of its own; it keys the draws."""

    @property
    def width(self) -> int:
        return self.max_tokens or self.max_new_tokens

    def room(self, sample: int) -> int:
        """The longest completion of this sample."""
        prompt = len(self.prompt_ids[sample])
        return self.width if self.context is None else min(self.width, self.context - prompt)


@dataclass(frozen=True)
class Turn:
    """A turn that has ended: its tokens, `start` tokens behind the prompt. `ended`: not cut by its length."""

    sample: int
    """The place in the request."""
    start: int
    ids: tuple[int, ...]
    ended: bool


class Replies(Protocol):
    """Answers the turns of a request. It works on them while other samples go on."""

    @property
    def patience(self) -> int:
        """Tokens that others sample before a reply is waited for. Not a time, so that results do not depend on it."""

    def ask(self, turns: Sequence[Turn]) -> None:
        """Begin to answer."""

    def take(self, samples: Sequence[int]) -> list[tuple[int, ...]]:
        """The tokens that follow the turns of these samples, which leave room for another token; empty: it is over."""
        ...


@dataclass(frozen=True)
class Completions:
    """Sampled completions. A completion ends with its end token, or with the token that completes a stop string; one
    cut by the length limit has neither, and is truncated.

    `behaviour_BT` are the log-probs under the sampling distribution. `prompt_hidden_BH` is the state after each prompt,
    for a critic; None if the sampler does not provide it.
    """

    ids_BT: Int[Tensor, "B T"]
    lengths_B: Int[Tensor, " B"]
    behaviour_BT: Float[Tensor, "B T"]
    truncated_B: Bool[Tensor, " B"]
    prompt_hidden_BH: Float[Tensor, "B H"] = None  # type: ignore[assignment]
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the sampler for this step."""

    def trimmed(self) -> "Completions":
        """Without the columns after the longest completion."""
        width = int(self.lengths_B.max())
        return replace(self, ids_BT=self.ids_BT[:, :width], behaviour_BT=self.behaviour_BT[:, :width])


class Sampler(Protocol):
    @property
    def exact(self) -> bool:
        """Whether its log-probs are the policy's, up to rounding."""

    @property
    def notice(self) -> str | None:
        """A note for the user about this sampler."""

    def sample(self, request: Request) -> Completions: ...


def blank_completions(request: Request, policy: Policy) -> Completions:
    count, width, device = len(request.prompt_ids), request.width, policy.device
    dtype = torch.float64 if policy.causal.dtype == torch.float64 else torch.float32
    return Completions(
        torch.full((count, width), policy.pad_id, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
        torch.zeros(count, width, dtype=dtype, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, policy.hidden_size, dtype=dtype, device=device),
    )
