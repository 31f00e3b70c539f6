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
from vigneron.policy.model import Policy, Reference, ValueHead, right_pad

HEAD_CHUNK = 1024

ValuePosition = Literal["last_prompt", "last_completion"]


@dataclass(frozen=True)
class Critic:
    """A value head and where it reads: V(s) before the answer, or (Algorithm 1) after its last token."""

    head: ValueHead
    position: ValuePosition


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


def completion_hidden(policy: Policy, batch: Batch, critic: Critic | None = None) -> tuple[Float[Tensor, "B T H"], Any]:
    """Hidden states that predict each completion token, and the critic's value of each sample."""
    lengths = batch.lengths_B.tolist()
    completions = batch.completion_BT.tolist()
    rows = [
        (*prompt, *completion[:length])
        for prompt, completion, length in zip(batch.prompt_ids, completions, lengths, strict=True)
    ]
    ids_BS, _ = right_pad(rows, policy.pad_id, policy.device)
    positions_BS = torch.arange(ids_BS.shape[1], device=policy.device).expand_as(ids_BS)
    hidden_BSH = policy.hidden(ids_BS, positions_BS)

    prompt_B = torch.tensor([len(prompt) for prompt in batch.prompt_ids], device=policy.device)
    row_B1 = torch.arange(len(batch), device=policy.device)[:, None]
    # The token at position p is predicted by the hidden state at p − 1. Past a row's end any state will do.
    at_BT = prompt_B[:, None] - 1 + torch.arange(batch.completion_BT.shape[1], device=policy.device)
    hidden_BTH = hidden_BSH[row_B1, at_BT.clamp(max=ids_BS.shape[1] - 1)]
    if critic is None:
        return hidden_BTH, None
    last_B = prompt_B - 1
    if critic.position == "last_completion":
        last_B = last_B + batch.lengths_B
    # The critic learns from the policy's states and does not shape them (Algorithm 1, line 18: a step on φ).
    return hidden_BTH, critic.head(hidden_BSH[row_B1[:, 0], last_B].detach())


def values_before(policy: Policy, batch: Batch, critic: Critic) -> Float[Tensor, " B"]:
    """V of each sample before the update. What reads the prompt alone reads the state kept while sampling."""
    if critic.position == "last_prompt" and batch.prompt_hidden_BH is not None:
        return critic.head(batch.prompt_hidden_BH)
    return completion_hidden(policy, batch, critic)[1]


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
    hidden_BTH, values_B = completion_hidden(policy, batch, critic)
    mask_BT = batch.mask_BT
    hidden_NH, ids_N = hidden_BTH[mask_BT], batch.completion_BT[mask_BT]
    reference_NH = batch.reference_hidden_BTH[mask_BT] if reference is not None else hidden_NH
    parts = [
        _statistics(policy, hidden_NH[at], ids_N[at], sampling, reference, reference_NH[at])
        for at in (slice(start, start + HEAD_CHUNK) for start in range(0, len(ids_N), HEAD_CHUNK))
    ]
    found = [_spread(torch.cat(values), mask_BT) for values in zip(*parts, strict=True)]
    return replace(Scores(*found), values_B=values_B)


def reference_view(reference: Reference, batch: Batch, sampling: Sampling, *, keep_hidden: bool) -> dict[str, Tensor]:
    """The reference's log-probs, without top-k and top-p, and its hidden states where the exact KL will need them."""
    with reference.active() as policy:
        hidden_BTH, _ = completion_hidden(policy, batch)
        mask_BT = batch.mask_BT
        chosen = [
            chosen_logprobs(sampled_logprobs(policy.logits(hidden_NH), untruncated(sampling)), ids_N)
            for hidden_NH, ids_N in zip(
                hidden_BTH[mask_BT].split(HEAD_CHUNK),
                batch.completion_BT[mask_BT].split(HEAD_CHUNK),
                strict=True,
            )
        ]
    seen = {"reference_BT": _spread(torch.cat(chosen), mask_BT)}
    return {**seen, "reference_hidden_BTH": hidden_BTH} if keep_hidden else seen


def untruncated(sampling: Sampling) -> Sampling:
    return Sampling(temperature=sampling.temperature)


def _statistics(
    policy: Policy,
    hidden_NH: Tensor,
    ids_N: Tensor,
    sampling: Sampling,
    reference: Reference | None,
    reference_NH: Tensor,
) -> tuple[Tensor, ...]:
    """One chunk of tokens: the fields of `Scores`, in their order."""

    def compute(hidden_NH: Tensor) -> tuple[Tensor, ...]:
        logits_NV = policy.logits(hidden_NH)
        full_NV = sampled_logprobs(logits_NV, untruncated(sampling))
        logprobs_NV = full_NV if sampling == untruncated(sampling) else sampled_logprobs(logits_NV, sampling, ids_N)
        chosen = (chosen_logprobs(logprobs_NV, ids_N), chosen_logprobs(full_NV, ids_N), entropy(logprobs_NV))
        if reference is None:
            return chosen
        with reference.active() as other:
            other_NV = sampled_logprobs(other.logits(reference_NH), untruncated(sampling))
        return *chosen, kl.exact(full_NV, other_NV)

    if not torch.is_grad_enabled():
        return compute(hidden_NH)
    return checkpoint(compute, hidden_NH, use_reentrant=False, preserve_rng_state=False)


def _spread(values_N: Tensor, mask_BT: Tensor) -> Float[Tensor, "B T"]:
    blank_BT = torch.zeros(mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
    return blank_BT.masked_scatter(mask_BT, values_N)
