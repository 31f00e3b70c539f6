"""Sample completions by the engine, or by transformers' `generate` for models that it does not support."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vigneron.core.draws import Sampling
from vigneron.core.masked import length_mask
from vigneron.data.prompts import STEP, Row, numbered
from vigneron.distributed import ranks
from vigneron.errors import DamagedWeights, UserError, first_line
from vigneron.policy.architecture import engine_obstacle
from vigneron.policy.attention import Unsupported
from vigneron.policy.model import Policy, attention_fits
from vigneron.rollout.engine.agreement import agrees, engine_agrees, reads_chunks
from vigneron.rollout.engine.by_turns import sample_by_turns
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.request import Completions, Replies, Request, Sampler


def sample(
    policy: Policy,
    prompt_ids: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    step: int = 0,
    sample_ids: Sequence[int] | None = None,
    microbatch_tokens: int = 65536,
    stop: Sequence[str] = (),
    replies: Replies | None = None,
    max_tokens: int | None = None,
    turn: int = 0,
) -> Completions:
    """Sample one completion per prompt from the policy's current weights; greedy without `sampling`.

    `sample_ids` identify the samples within the step: equal ids give equal draws. Consecutive equal prompts share one
    prefill. The batch composition changes results only by rounding. Strings of `stop` end a completion; its tokens and
    log-probs up to there are those without `stop`. With `replies` a completion is a conversation of at most
    `max_tokens` tokens, and `max_new_tokens` the length of a turn.
    """
    check_lengths(policy, prompt_ids, max_new_tokens)
    names = list(sample_ids) if sample_ids is not None else list(range(len(prompt_ids)))
    request = Request(
        prompt_ids,
        max_new_tokens,
        sampling,
        seed,
        step,
        names,
        microbatch_tokens,
        tuple(stop),
        replies,
        max_tokens,
        policy.context_length,
        turn,
    )
    return _checked(_sampled(policy, request).trimmed())


def _sampled(policy: Policy, request: Request) -> Completions:
    sampler = sampler_of(policy)
    if request.replies is not None and isinstance(sampler, Engine) and sampler.reads_chunks is None:
        sampler.reads_chunks = reads_chunks(policy, sampler)
    if request.replies is None or getattr(sampler, "converses", False):
        return sampler.sample(request)
    if policy.long_rope is not None:
        raise UserError(
            "environment: this model's positions depend on the length of the text, so only the engine samples its "
            "conversations: remove scale.sampler"
        )
    return sample_by_turns(policy, sampler, request)


def _checked(done: Completions) -> Completions:
    if broken := int((~done.behaviour_BT.isfinite()).any(1).sum()):
        raise DamagedWeights(
            f"the model's logits are NaN or infinite in {broken} of {len(done.lengths_B)} samples: its weights are "
            "damaged, or training has diverged; resume from an earlier checkpoint with a lower learning rate"
        )
    return done


def sample_on_all_ranks(policy: Policy, prompt_ids: Sequence[Sequence[int]], **options: Any) -> Completions:
    """`sample` with all of its options by all ranks: each samples a share of the prompts, and every rank gets all
    completions."""
    total = ranks.world_size()
    if total == 1:
        return sample(policy, prompt_ids, **options)
    check_lengths(policy, prompt_ids, options["max_new_tokens"])
    names = list(options.pop("sample_ids", None) or range(len(prompt_ids)))
    sampler: Any = sampler_of(policy)

    def request(rows: slice) -> Request:
        return Request(prompt_ids[rows], sample_ids=names[rows], context=policy.context_length, **options)

    if hasattr(sampler, "sample_for_all"):
        if options.get("replies") is not None:
            raise UserError("environment: vLLM cannot sample conversations for several ranks: remove scale.sampler")
        done = sampler.sample_for_all(request(slice(None)), policy.device).trimmed()
        return ranks.run_on_all_ranks(lambda: _checked(done))
    mine = rank_share(len(prompt_ids))
    done = _sampled(policy, request(sampled_share(len(prompt_ids)))).trimmed()
    width = int(ranks.all_reduce_max(done.ids_BT.shape[1]))

    def gather(local: Tensor, *, by_token: bool = False) -> Tensor:
        full = local.new_zeros(len(prompt_ids), *((width,) if by_token else local.shape[1:]))
        if mine.stop > mine.start:
            (full[mine, : local.shape[1]] if by_token else full[mine]).copy_(local)
        return ranks.all_reduce_sum(full)

    lengths_B = gather(done.lengths_B)
    ids_BT = gather(done.ids_BT, by_token=True)
    every = Completions(
        torch.where(length_mask(lengths_B, width), ids_BT, policy.pad_id),
        lengths_B,
        gather(done.behaviour_BT, by_token=True),
        gather(done.truncated_B.long()).bool(),
        gather(done.prompt_hidden_BH),
    )
    return ranks.run_on_all_ranks(lambda: _checked(every))  # an error of one rank alone would leave the others waiting


def rank_share(count: int) -> slice:
    """Which of so many prompts this rank samples; empty if there are fewer than ranks."""
    first, end = (count * at // ranks.world_size() for at in (ranks.rank(), ranks.rank() + 1))
    return slice(first, end)


def sampled_share(count: int) -> slice:
    """`rank_share`, and the first prompt if it is empty: gathering sharded weights is collective, so every rank samples
    something."""
    share = rank_share(count)
    return share if share.stop > share.start else slice(0, 1)


def check_lengths(
    policy: Policy,
    prompt_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    of: str = STEP,
    rows: Sequence[Row] | None = None,
) -> None:
    """Raise for prompts that leave no room for a completion. `rows` have the numbers by which they are named."""
    limit = policy.context_length
    too_long = [i for i, ids in enumerate(prompt_ids) if limit and len(ids) + max_new_tokens > limit]
    if too_long:
        number, of = numbered({} if rows is None else rows[too_long[0]], too_long[0] + 1, of)
        raise UserError(
            f"{len(too_long)} prompts do not fit with max_new_tokens={max_new_tokens} into the model's context of "
            f"{limit} tokens (the first is prompt {number} of {of}, {len(prompt_ids[too_long[0]])} tokens): "
            "shorten them or lower max_new_tokens"
        )


def sampler_of(policy: Policy) -> Sampler:
    """The policy's sampler, created at the first call."""
    if policy.sampler is None:
        policy.sampler = _make_sampler(policy)
    return policy.sampler


def _make_sampler(policy: Policy) -> Sampler:
    try:
        if reason := engine_obstacle(type(policy.causal), policy.causal.config):
            raise Unsupported(reason)
        if policy.own_attention is None:
            policy.own_attention = attention_fits(policy)
        engine = Engine(policy)
        agreed = engine_agrees(policy, engine)
        if not agreed and engine.fused:
            del engine  # its memory
            engine = Engine(policy, fused=False)
            agreed = engine_agrees(policy, engine)
        if not agreed:
            raise Unsupported("layers that the engine does not reproduce")
        engine.clear_graphs()  # of the small windows
    except (torch.OutOfMemoryError, UserError):
        raise
    except Exception as error:  # any model is possible: what the engine cannot build or run, `generate` may
        why = str(error) if isinstance(error, Unsupported) else f"layers that fail in it: {first_line(error)}"
        if policy.sharding is not None:
            raise UserError(
                f"scale.shard: the engine cannot sample from this model, it has {why}: set scale.shard=1"
            ) from None
        try:
            return _fallback(policy, why)
        except (torch.OutOfMemoryError, UserError):
            raise
        except Exception as error:  # a model that `generate` cannot run either
            kind = policy.causal.config.model_type
            raise UserError(f"model: transformers' generate fails for '{kind}': {first_line(error)}") from error
    if policy.compiled and not engine.fused:
        engine.compile()
    return engine


def _fallback(policy: Policy, why: str) -> GenerateSampler:
    """`generate`, without padding if it changes the log-probs; marked as inexact if they still differ."""
    sampler = GenerateSampler(policy, why)
    if not agrees(policy, sampler):
        sampler.pads = False
        sampler.exact = agrees(policy, sampler)
        sampler.notice += "; prompts of different lengths are not sampled together, since it reads padding"
    if not sampler.exact:
        sampler.notice += (
            "; its log-probs differ from those of training, so samples get importance weights (`importance/gap`)"
        )
    return sampler
