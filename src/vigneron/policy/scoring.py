"""A teacher-forced pass: what a policy thinks of given completions, at their positions only.

Head, log-probs, entropy and KL are computed in chunks of tokens and recomputed in the backward pass: [B, T, V]
never exists.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vigneron.batch import Batch
from vigneron.core import kl
from vigneron.core.draws import Sampling, chosen_logprobs, entropy, sampled_logprobs
from vigneron.policy.head import HEAD_CHUNK, token_statistics
from vigneron.policy.layout import Layout, lay_out
from vigneron.policy.model import Policy, Reference, ValueHead

ValuePosition = Literal["last_prompt", "last_completion"]


@dataclass(frozen=True)
class Critic:
    """A value head and where it reads: V(s) before the answer, or (Algorithm 1) after its last token."""

    head: ValueHead
    position: ValuePosition

    def state_dict(self) -> dict[str, Tensor]:
        return self.head.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.head.load_state_dict(state)


@dataclass(frozen=True)
class Scores:
    """Per completion token, under the policy as it is now: 0 where there is no token."""

    logprobs_BT: Float[Tensor, "B T"]
    """Of the distribution that was sampled from."""
    untruncated_BT: Float[Tensor, "B T"]
    """The same without top-k and top-p: what a KL to the reference compares."""
    entropy_BT: Float[Tensor, "B T"]
    # Where a reference and a critic were given.
    exact_kl_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    values_B: Float[Tensor, " B"] = None  # type: ignore[assignment]


def forward(policy: Policy, batch: Batch, critic: Critic | None = None) -> tuple[Layout, Float[Tensor, "M H"], Any]:
    """How the samples were laid out, all hidden states, and the critic's value of each sample."""
    after_last = critic is not None and critic.position == "last_completion"
    layout = lay_out(batch, policy.pad_id, policy.device, with_last=after_last, for_graphs=policy.graphed)
    hidden_MH = policy.hidden(layout.ids_RS, layout.positions_RS, layout.allowed_R1SS).flatten(0, 1)
    if critic is None:
        return layout, hidden_MH, None
    at_B = layout.completion_end_B if after_last else layout.prompt_end_B
    # The critic learns from the policy's states and does not shape them (Algorithm 1, line 18: a step on φ).
    return layout, hidden_MH, critic.head(hidden_MH[at_B].detach())


def values_before(policy: Policy, batch: Batch, critic: Critic) -> Float[Tensor, " B"]:
    """V of each sample before the update. What reads the prompt alone reads the state kept while sampling."""
    if critic.position == "last_prompt" and batch.prompt_hidden_BH is not None:
        return critic.head(batch.prompt_hidden_BH)
    return forward(policy, batch, critic)[2]


def score(
    policy: Policy,
    batch: Batch,
    sampling: Sampling,
    *,
    critic: Critic | None = None,
    reference: Reference | None = None,
) -> Scores:
    """Log-probs of given tokens, entropy, and the values.

    With a `reference` (and its hidden states in the batch) also the exact KL(π ‖ reference) over the vocabulary. Top-k
    and top-p change what is sampled, not what is compared with the reference: equal policies have a KL of 0.
    """
    layout, hidden_MH, values_B = forward(policy, batch, critic)
    hidden_NH = hidden_MH[layout.predicts_N]
    reference_NH = None
    if reference is not None:
        reference_NH = batch.reference_hidden_BTH.flatten(0, 1)[layout.into_N]
    found = _statistics(policy, hidden_NH, layout.token_N, sampling, reference, reference_NH)
    return replace(Scores(*(_spread(values_N, layout, batch) for values_N in found)), values_B=values_B)


def reference_view(reference: Reference, batch: Batch, sampling: Sampling, *, keep_hidden: bool) -> dict[str, Tensor]:
    """The reference's log-probs, without top-k and top-p, and its hidden states where the exact KL will need them."""
    with reference.active() as policy:
        layout, hidden_MH, _ = forward(policy, batch)
        hidden_NH = hidden_MH[layout.predicts_N]
        seen_N = _statistics(policy, hidden_NH, layout.token_N, untruncated(sampling), None, None)[0]
    seen = {"reference_BT": _spread(seen_N, layout, batch)}
    if not keep_hidden:
        return seen
    blank_MH = hidden_NH.new_zeros(batch.completion_BT.numel(), hidden_NH.shape[1])
    kept_BTH = blank_MH.index_copy(0, layout.into_N, hidden_NH).unflatten(0, batch.completion_BT.shape)
    return {**seen, "reference_hidden_BTH": kept_BTH}


def untruncated(sampling: Sampling) -> Sampling:
    return Sampling(temperature=sampling.temperature)


def _statistics(
    policy: Policy,
    hidden_NH: Tensor,
    ids_N: Tensor,
    sampling: Sampling,
    reference: Reference | None,
    reference_NH: Tensor | None,
) -> tuple[Tensor, ...]:
    """Per token, the fields of `Scores` in their order."""
    head = policy.head()
    other = reference.policy.head() if reference is not None else None
    if head is not None and sampling == untruncated(sampling) and (reference is None or other is not None):
        found = token_statistics(head, hidden_NH, ids_N, sampling.temperature, other, reference_NH)
        kl_N = () if found.exact_kl_N is None else (found.exact_kl_N,)
        return found.chosen_N, found.chosen_N, found.entropy_N, *kl_N
    parts = [
        _taped_statistics(
            policy, hidden_NH[at], ids_N[at], sampling, reference, None if reference_NH is None else reference_NH[at]
        )
        for at in (slice(start, start + HEAD_CHUNK) for start in range(0, len(ids_N), HEAD_CHUNK))
    ]
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


def _taped_statistics(
    policy: Policy,
    hidden_NH: Tensor,
    ids_N: Tensor,
    sampling: Sampling,
    reference: Reference | None,
    reference_NH: Tensor | None,
) -> tuple[Tensor, ...]:
    """One chunk, by autograd: for heads that are more than a matrix, and where top-k or top-p cut the distribution."""

    def compute(hidden_NH: Tensor) -> tuple[Tensor, ...]:
        logits_NV = policy.logits(hidden_NH)
        full_NV = sampled_logprobs(logits_NV, untruncated(sampling))
        logprobs_NV = full_NV if sampling == untruncated(sampling) else sampled_logprobs(logits_NV, sampling, ids_N)
        chosen = (chosen_logprobs(logprobs_NV, ids_N), chosen_logprobs(full_NV, ids_N), entropy(logprobs_NV))
        if reference is None or reference_NH is None:
            return chosen
        with reference.active() as other:
            other_NV = sampled_logprobs(other.logits(reference_NH), untruncated(sampling))
        return *chosen, kl.exact(full_NV, other_NV)

    if not torch.is_grad_enabled():
        return compute(hidden_NH)
    return checkpoint(compute, hidden_NH, use_reentrant=False, preserve_rng_state=False)


def _spread(values_N: Tensor, layout: Layout, batch: Batch) -> Float[Tensor, "B T"]:
    blank_M = values_N.new_zeros(batch.completion_BT.numel())
    return blank_M.index_copy(0, layout.into_N, values_N).view(batch.completion_BT.shape)
