"""Sampling completions: batched, with a key/value cache, every draw keyed by its sample."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from vigneron.batch import length_buckets
from vigneron.core.draws import Sampling, chosen_logprobs, draw, keyed_uniform, sampled_logprobs
from vigneron.errors import UserError
from vigneron.policy.model import Policy, left_pad, positions_of


@dataclass(frozen=True)
class Completions:
    """What was sampled. A completion ends with its end token; one cut by the length limit has none.

    `prompt_hidden_BH` is the state after each prompt, which a critic may read.
    """

    ids_BT: Int[Tensor, "B T"]
    lengths_B: Int[Tensor, " B"]
    behaviour_BT: Float[Tensor, "B T"]
    truncated_B: Bool[Tensor, " B"]
    prompt_hidden_BH: Float[Tensor, "B H"]


@torch.no_grad()
def sample(
    policy: Policy,
    prompt_ids: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    step: int = 0,
    sample_ids: Sequence[int] | None = None,
    tokens_at_once: int = 65536,
) -> Completions:
    """Sample one completion for each prompt; without `sampling`, greedily.

    `sample_ids` name the samples within the step: equal names, equal draws. Rows are sampled in buckets of
    like length, which changes nothing but rounding. Log-probs are those of the distribution sampled from.
    """
    limit = policy.context_length
    too_long = [i for i, ids in enumerate(prompt_ids) if limit and len(ids) + max_new_tokens > limit]
    if too_long:
        raise UserError(
            f"{len(too_long)} prompts do not fit with max_new_tokens={max_new_tokens} into the model's context of "
            f"{limit} tokens (the first is prompt {too_long[0] + 1} of the step, {len(prompt_ids[too_long[0]])} tokens)"
        )
    names = torch.tensor(list(sample_ids) if sample_ids is not None else range(len(prompt_ids)))
    count, device = len(prompt_ids), policy.device
    whole = Completions(
        torch.full((count, max_new_tokens), policy.pad_id, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
        torch.zeros(count, max_new_tokens, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, policy.hidden_size, device=device),
    )
    for rows in length_buckets([len(ids) + max_new_tokens for ids in prompt_ids], tokens_at_once):
        part = _sample_bucket(
            policy,
            [prompt_ids[i] for i in rows],
            names[rows].to(device),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            seed=seed,
            step=step,
        )
        width = part.ids_BT.shape[1]
        whole.ids_BT[rows, :width] = part.ids_BT
        whole.lengths_B[rows] = part.lengths_B
        whole.behaviour_BT[rows, :width] = part.behaviour_BT.to(whole.behaviour_BT.dtype)
        whole.truncated_B[rows] = part.truncated_B
        whole.prompt_hidden_BH[rows] = part.prompt_hidden_BH.float()
    width = int(whole.lengths_B.max())
    return replace(whole, ids_BT=whole.ids_BT[:, :width], behaviour_BT=whole.behaviour_BT[:, :width])


def _sample_bucket(
    policy: Policy,
    prompt_ids: Sequence[Sequence[int]],
    names_B: Int[Tensor, " B"],
    *,
    max_new_tokens: int,
    sampling: Sampling | None,
    seed: int,
    step: int,
) -> Completions:
    ids_BS, attention_BS = left_pad(prompt_ids, policy.pad_id, policy.device)
    positions_BS = positions_of(attention_BS)
    cache = DynamicCache()
    ends = torch.tensor(sorted(policy.eos_ids), device=policy.device)
    running_B = torch.ones(len(prompt_ids), dtype=torch.bool, device=policy.device)
    lengths_B = torch.zeros_like(names_B)
    tokens, behaviour = [], []
    for position in range(max_new_tokens):
        hidden_BH = policy.hidden(ids_BS, positions_BS, attention_BS, cache)[:, -1]
        if position == 0:
            prompt_hidden_BH = hidden_BH
        logits_BV = policy.logits(hidden_BH)
        logprobs_BV = sampled_logprobs(logits_BV, sampling or Sampling())
        if sampling is None:
            token_B = logits_BV.argmax(-1)
        else:
            token_B = draw(logprobs_BV, keyed_uniform(seed, step, names_B, position))
        tokens.append(torch.where(running_B, token_B, policy.pad_id))
        behaviour.append(chosen_logprobs(logprobs_BV, token_B).where(running_B, 0.0))
        lengths_B = lengths_B + running_B
        running_B = running_B & ~torch.isin(token_B, ends)
        if not running_B.any():
            break
        # A finished row goes on being fed padding that nobody reads.
        ids_BS = tokens[-1][:, None]
        positions_BS = positions_BS[:, -1:] + 1
        attention_BS = torch.cat([attention_BS, torch.ones_like(ids_BS)], dim=1)
    return Completions(torch.stack(tokens, 1), lengths_B, torch.stack(behaviour, 1), running_B, prompt_hidden_BH)
