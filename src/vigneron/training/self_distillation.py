"""On-policy self-distillation (SDPO, Hübotter et al. 2026): the policy that has seen more scores its own tokens.

The response y is sampled for the bare question q. The same weights, π₀ at the start of the step, score it once more
after q with something seen before it, c: feedback, a better response, a category's prompt. Token t's signal

    dₜ = log π₀(yₜ | c, q, y₍<t₎) − log π₀(yₜ | q, y₍<t₎)

is positive where c makes the token more likely. As an advantage its gradient is, in expectation over y, that of
−Σₜ KL(π(· | q, y₍<t₎) ‖ π₀(· | c, q, y₍<t₎)), by the sampled token. It is added to the reward's advantage:

    Aₜ = R − mean of the group + λ · clip(dₜ, −limit, limit)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.data.prompts import prompts_token_ids
from vigneron.rollout.grape import with_prompts
from vigneron.rollout.grape_memory import row_of
from vigneron.training.parts import Parts


def with_hindsight(batch: Batch, prompts: Sequence[Any], parts: Parts, coefficient: float, limit: float) -> Batch:
    """Add λ · clip(d) to the advantages. `prompts` have what was seen before each question; None: no signal."""
    at, ids, too_long = _prompts_that_fit(batch, prompts, parts)
    difference_BT = torch.zeros_like(batch.samples.behaviour_BT)
    if at:
        asked = batch.rows(at)
        # Both by a forward pass: the sampler's own log-probs may be rounded in another way.
        before_BT, after_BT = (
            parts.precompute(part, parts.policy_pass)["behaviour_BT"] for part in (asked, with_prompts(asked, ids))
        )
        difference_BT[at, : before_BT.shape[1]] = clipped_difference(before_BT, after_BT, asked.samples.mask_BT, limit)
    mask_NT = batch.samples.mask_BT[at] if at else batch.samples.mask_BT[:0]
    advantages_BT = batch.signals.advantages_BT + coefficient * difference_BT
    return batch.with_signals(advantages_BT=advantages_BT).with_metrics(
        {
            "hindsight/share": len(at) / len(batch),
            "hindsight/too_long": too_long / len(batch),
            **({"hindsight/mean": float(difference_BT[at][mask_NT].mean())} if mask_NT.any() else {}),
            **({"hindsight/size": float(difference_BT[at][mask_NT].abs().mean())} if mask_NT.any() else {}),
        }
    )


def clipped_difference(before_BT: Tensor, after_BT: Tensor, mask_BT: Tensor, limit: float) -> Tensor:
    """clip(dₜ), 0 where there is no token. A token that neither top-k nor top-p leaves possible has no signal."""
    difference_BT = (after_BT - before_BT).clamp(-limit, limit)
    return torch.where(mask_BT & ~difference_BT.isnan(), difference_BT, 0.0)


def _prompts_that_fit(
    batch: Batch, prompts: Sequence[Any], parts: Parts
) -> tuple[list[int], list[tuple[int, ...]], int]:
    """The samples that have a prompt other than their own, its ids, and how many prompts were too long."""
    some = [i for i, prompt in enumerate(prompts) if prompt is not None and prompt != batch.samples.prompts[i]]
    every = prompts_token_ids(parts.policy.tokenizer, [prompts[i] for i in some], rows=[row_of(batch, i) for i in some])
    limit, widths = parts.policy.context_length, batch.samples.widths
    fits = {i: ids for i, ids in zip(some, every, strict=True) if limit is None or len(ids) + widths[i] <= limit}
    return list(fits), list(fits.values()), len(some) - len(fits)
