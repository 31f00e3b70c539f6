"""Sampling completions: by the engine, or where a model cannot, by transformers' `generate`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vigneron.core.draws import Sampling
from vigneron.core.masked import length_mask
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.rollout.engine.cached_attention import Unsupported
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import Generate
from vigneron.rollout.engine.request import Completions, Request, Sampler


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
    """Sample one completion for each prompt, from the policy as it is now; without `sampling`, greedily.

    `sample_ids` name the samples within the step: equal names, equal draws. A prompt that stands several times in a
    row is computed once. Which samples run side by side changes nothing but rounding.
    """
    check_lengths(policy, prompt_ids, max_new_tokens)
    names = list(sample_ids) if sample_ids is not None else list(range(len(prompt_ids)))
    request = Request(prompt_ids, max_new_tokens, sampling, seed, step, names, tokens_at_once)
    return sampler_of(policy).sample(request).trimmed()


def sample_together(policy: Policy, prompt_ids: Sequence[Sequence[int]], **options: Any) -> Completions:
    """The same by all ranks: each samples some of the prompts, and all of them hold all of the completions."""
    total = ranks.world_size()
    if total == 1:
        return sample(policy, prompt_ids, **options)
    check_lengths(policy, prompt_ids, options["max_new_tokens"])
    names = list(options.pop("sample_ids", None) or range(len(prompt_ids)))
    sampler: Any = sampler_of(policy)
    if hasattr(sampler, "sample_for_all"):
        request = Request(prompt_ids, sample_ids=names, **{"sampling": None, **options})
        return sampler.sample_for_all(request, policy.device).trimmed()
    first, end = (len(prompt_ids) * at // total for at in (ranks.rank(), ranks.rank() + 1))
    mine = slice(first, end)
    asked = mine if end > first else slice(0, 1)  # sharded weights are gathered by all: nobody stands aside
    done = sample(policy, prompt_ids[asked], sample_ids=names[asked], **options)
    width = int(ranks.all_reduce_max(done.ids_BT.shape[1]))

    def everybodys(found: Tensor, *, by_token: bool = False) -> Tensor:
        whole = found.new_zeros(len(prompt_ids), *((width,) if by_token else found.shape[1:]))
        if end > first:
            (whole[mine, : found.shape[1]] if by_token else whole[mine]).copy_(found)
        return ranks.all_reduce_sum(whole)

    lengths_B = everybodys(done.lengths_B)
    ids_BT = everybodys(done.ids_BT, by_token=True)
    return Completions(
        torch.where(length_mask(lengths_B, width), ids_BT, policy.pad_id),
        lengths_B,
        everybodys(done.behaviour_BT, by_token=True),
        everybodys(done.truncated_B.long()).bool(),
        everybodys(done.prompt_hidden_BH),
    )


def check_lengths(
    policy: Policy, prompt_ids: Sequence[Sequence[int]], max_new_tokens: int, of: str = "the step"
) -> None:
    limit = policy.context_length
    too_long = [i for i, ids in enumerate(prompt_ids) if limit and len(ids) + max_new_tokens > limit]
    if too_long:
        raise UserError(
            f"{len(too_long)} prompts do not fit with max_new_tokens={max_new_tokens} into the model's context of "
            f"{limit} tokens (the first is prompt {too_long[0] + 1} of {of}, {len(prompt_ids[too_long[0]])} tokens)"
        )


def sampler_of(policy: Policy) -> Sampler:
    """The policy's sampler, made at the first call and kept with it."""
    if policy.sampler is None:
        policy.sampler = _make_sampler(policy)
    return policy.sampler


def _make_sampler(policy: Policy) -> Sampler:
    try:
        if not getattr(type(policy.causal), "_supports_attention_backend", False):
            raise Unsupported("attention of its own kind")
        engine = Engine(policy)
        _check(policy, engine)
    except Unsupported as reason:
        if policy.sharding is not None:
            raise UserError(f"scale.shard: weights that are shared cannot sample here: {reason}. Set it to 1") from None
        return Generate(policy, str(reason))
    if policy.compiled:
        engine.compile()
    return engine


@torch.no_grad()
def _check(policy: Policy, engine: Engine) -> None:
    """Rows of different lengths, sampled, must have the log-probs of a plain pass; else the model is not one for us."""
    vocabulary = policy.causal.config.vocab_size
    prompts = [[1 % vocabulary, 2 % vocabulary, 3 % vocabulary], [4 % vocabulary]]
    done = engine.sample(Request(prompts, 3, None, 0, 0, [0, 1], 64))
    for row, prompt in enumerate(prompts):
        completion = done.ids_BT[row, : int(done.lengths_B[row])]
        ids = torch.cat([torch.tensor(prompt, device=policy.device), completion])[None]
        positions = torch.arange(ids.shape[1], device=policy.device)[None]
        logprobs = policy.logits(policy.hidden(ids, positions))[0].log_softmax(-1)
        expected = logprobs[len(prompt) - 1 : -1].gather(1, completion[:, None])[:, 0]
        tolerance = 0.05 if policy.compute_dtype == torch.bfloat16 else 1e-3
        if (done.behaviour_BT[row, : len(completion)] - expected).abs().mean() > tolerance:
            raise Unsupported("attention that the engine does not reproduce")
