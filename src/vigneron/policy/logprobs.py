"""A teacher-forced pass: log-probs, entropy, KL and values of given completions, at completion positions only.

The head is computed in chunks of tokens and recomputed in the backward pass: [B, T, V] is never materialized.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vigneron.batch import Batch
from vigneron.core import kl
from vigneron.core.draws import Sampling, chosen_logprobs, entropy, sampled_logprobs
from vigneron.policy.fused_head import HEAD_CHUNK, token_statistics
from vigneron.policy.model import Policy
from vigneron.policy.packing import Layout, lay_out
from vigneron.policy.reference import Reference

ValuePosition = Literal["last_prompt", "last_completion", "every_token"]


class ValueHead(nn.Module):
    """The critic's linear head on hidden states; V = 0 at the start, or as torch starts a linear layer."""

    def __init__(self, hidden_size: int, random_seed: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        generator = None if random_seed is None else torch.Generator().manual_seed(random_seed)
        for weight in (self.linear.weight, self.linear.bias):
            if generator is None:
                nn.init.zeros_(weight)
            else:
                nn.init.uniform_(weight, -(hidden_size**-0.5), hidden_size**-0.5, generator=generator)

    def forward(self, hidden_BH: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        return self.linear(hidden_BH.to(self.linear.weight.dtype)).squeeze(-1)


@dataclass(frozen=True)
class Critic:
    """A value head and its position: V(s) before the completion, after its last token (Algorithm 1), or before each.

    It reads the policy's hidden states, detached, or those of its own network, which it trains.
    """

    head: ValueHead
    position: ValuePosition
    network: Policy | None = None

    @classmethod
    def of(
        cls, policy: Policy, position: ValuePosition, *, own_network: bool = False, random_seed: int | None = None
    ) -> "Critic":
        # Not in a base's bfloat16: values enter advantages as differences from rewards, and its steps are small.
        dtype = torch.promote_types(policy.causal.dtype, torch.float32)
        head = ValueHead(policy.hidden_size, random_seed).to(policy.device, dtype)
        return cls(head, position, policy.trainable_copy() if own_network else None)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        trunk = self.network.trunk_parameters() if self.network is not None else []
        return [*self.head.named_parameters(prefix="head"), *((f"network.{name}", weight) for name, weight in trunk)]


@dataclass(frozen=True)
class ExactKl:
    """The exact KL over the vocabulary between the policy and another one, whose hidden states are in the batch."""

    other: Reference
    states: Literal["reference_hidden_BTH", "previous_hidden_BTH", "parent_hidden_BTH"] = "reference_hidden_BTH"
    beta: float = 1.0
    """KL(π ‖ other) at 1, KL(other ‖ π) at 0, as eq. 8-10 have it; between them GKD's divergence."""

    def __post_init__(self) -> None:
        self.other.keep_head()


@dataclass(frozen=True)
class TopKl:
    """The same to a parent of which the batch has the `count` most likely tokens; all others are one token."""

    count: int
    beta: float = 1.0


@dataclass(frozen=True)
class Scores:
    """Per completion token, under the current policy; 0 where there is no token."""

    logprobs_BT: Float[Tensor, "B T"]
    """Under the sampling distribution."""
    untruncated_BT: Float[Tensor, "B T"]
    """Without top-k and top-p: for the KL to the reference."""
    entropy_BT: Float[Tensor, "B T"]
    # Only with another policy or a critic.
    exact_kl_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    values_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    values_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]


def forward(policy: Policy, batch: Batch, *, with_last: bool = False) -> tuple[Layout, Float[Tensor, "M H"]]:
    """The layout of the samples, and all hidden states."""
    layout = lay_out(batch, policy, with_last=with_last)
    return layout, policy.hidden(layout.ids_RS, layout.positions_RS, layout.apart).flatten(0, 1)


def critic_values(critic: Critic, layout: Layout, hidden_MH: Float[Tensor, "M H"], batch: Batch) -> dict[str, Tensor]:
    """V of each sample, or before each of its tokens, by its field in `Scores`. `hidden_MH` are the policy's states."""
    # The value loss does not train the policy's trunk (Algorithm 1, line 18: a step on φ).
    states_MH = hidden_MH.detach()
    if critic.network is not None:
        states_MH = critic.network.hidden(layout.ids_RS, layout.positions_RS, layout.apart).flatten(0, 1)
    if critic.position == "every_token":
        return {"values_BT": _spread(critic.head(states_MH[layout.predicts_N]), layout, batch)}
    after_last = critic.position == "last_completion"
    return {"values_B": critic.head(states_MH[layout.completion_end_B if after_last else layout.prompt_end_B])}


def values_before(policy: Policy, batch: Batch, critic: Critic) -> dict[str, Tensor]:
    """V before the update. A critic at the prompt's last token uses the state kept from sampling."""
    if critic.position == "last_prompt" and critic.network is None and batch.samples.prompt_hidden_BH is not None:
        return {"values_B": critic.head(batch.samples.prompt_hidden_BH)}
    return critic_values(critic, *forward(policy, batch, with_last=critic.position == "last_completion"), batch)


def score(
    policy: Policy,
    batch: Batch,
    sampling: Sampling,
    *,
    critic: Critic | None = None,
    exact_kl: ExactKl | TopKl | None = None,
) -> Scores:
    """Log-probs of the batch's tokens, entropy, and values.

    With `exact_kl` (and the other policy's hidden states, or its most likely tokens, in the batch) also the exact KL
    over the vocabulary, without top-k and top-p, so that equal policies have a KL of 0.
    """
    after_last = critic is not None and critic.position == "last_completion"
    layout, hidden_MH = forward(policy, batch, with_last=after_last)
    hidden_NH = hidden_MH[layout.predicts_N]
    states: tuple[str, ...] = ()
    if exact_kl is not None:
        states = ("parent_top_BTK", "parent_ids_BTK") if isinstance(exact_kl, TopKl) else (exact_kl.states,)
    others = tuple(getattr(batch.signals, name).flatten(0, 1)[layout.into_N] for name in states)
    statistics = head_statistics(policy, hidden_NH, layout.token_N, sampling, exact_kl, others)
    values = critic_values(critic, layout, hidden_MH, batch) if critic is not None else {}
    return replace(Scores(*(_spread(values_N, layout, batch) for values_N in statistics)), **values)


def reference_view(
    reference: Reference,
    batch: Batch,
    sampling: Sampling,
    *,
    keep_hidden: bool,
    name: Literal["reference", "previous", "parent"] = "reference",
) -> dict[str, Tensor]:
    """The reference's log-probs without top-k and top-p, and with `keep_hidden` its hidden states for the exact KL."""
    with reference.active() as policy:
        layout, hidden_MH = forward(policy, batch)
        hidden_NH = hidden_MH[layout.predicts_N]
        seen_N = head_statistics(policy, hidden_NH, layout.token_N, untruncated(sampling))[0]
    seen = {f"{name}_BT": _spread(seen_N, layout, batch)}
    if not keep_hidden:
        return seen
    blank_MH = hidden_NH.new_zeros(batch.samples.completion_BT.numel(), hidden_NH.shape[1])
    kept_BTH = blank_MH.index_copy(0, layout.into_N, hidden_NH).unflatten(0, batch.samples.completion_BT.shape)
    return {**seen, f"{name}_hidden_BTH": kept_BTH}


def untruncated(sampling: Sampling) -> Sampling:
    return Sampling(temperature=sampling.temperature)


def head_statistics(
    policy: Policy,
    hidden_NH: Tensor,
    ids_N: Tensor,
    sampling: Sampling,
    exact_kl: ExactKl | TopKl | None = None,
    others: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Per token, the fields of `Scores` in their order. `others` is what the batch has of the other policy."""
    head = policy.head()
    other = exact_kl.other.policy.head() if isinstance(exact_kl, ExactKl) else None
    if head is not None and sampling == untruncated(sampling) and (exact_kl is None or other is not None):
        beta = exact_kl.beta if exact_kl is not None else 1.0
        statistics = token_statistics(head, hidden_NH, ids_N, sampling.temperature, other, *others, beta=beta)
        kl_N = () if statistics.exact_kl_N is None else (statistics.exact_kl_N,)
        return statistics.chosen_N, statistics.chosen_N, statistics.entropy_N, *kl_N
    parts = [
        _taped_statistics(policy, hidden_NH[at], ids_N[at], sampling, exact_kl, [each[at] for each in others])
        for at in (slice(start, start + HEAD_CHUNK) for start in range(0, len(ids_N), HEAD_CHUNK))
    ]
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


def _taped_statistics(
    policy: Policy,
    hidden_NH: Tensor,
    ids_N: Tensor,
    sampling: Sampling,
    exact_kl: ExactKl | TopKl | None,
    others: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One chunk by autograd: for heads that are not a plain matrix, with top-k or top-p, and for K tokens of a
    parent."""

    def compute(hidden_NH: Tensor) -> tuple[Tensor, ...]:
        logits_NV = policy.logits(hidden_NH)
        full_NV = sampled_logprobs(logits_NV, untruncated(sampling))
        logprobs_NV = full_NV if sampling == untruncated(sampling) else sampled_logprobs(logits_NV, sampling, ids_N)
        chosen = (chosen_logprobs(logprobs_NV, ids_N), chosen_logprobs(full_NV, ids_N), entropy(logprobs_NV))
        if exact_kl is None:
            return chosen
        if isinstance(exact_kl, TopKl):
            top_NK, top_ids_NK = others
            own_NK = full_NV.gather(-1, top_ids_NK)
            return *chosen, kl.divergence(kl.with_rest(top_NK), kl.with_rest(own_NK), exact_kl.beta)
        with exact_kl.other.active(head_only=True) as other:
            other_NV = sampled_logprobs(other.logits(others[0]), untruncated(sampling))
        size = min(full_NV.shape[-1], other_NV.shape[-1])
        return *chosen, kl.divergence(other_NV[:, :size], full_NV[:, :size], exact_kl.beta)

    if not torch.is_grad_enabled():
        return compute(hidden_NH)
    return checkpoint(compute, hidden_NH, use_reentrant=False, preserve_rng_state=False)


def _spread(values_N: Tensor, layout: Layout, batch: Batch) -> Float[Tensor, "B T"]:
    blank_M = values_N.new_zeros(batch.samples.completion_BT.numel())
    return blank_M.index_copy(0, layout.into_N, values_N).view(batch.samples.completion_BT.shape)
