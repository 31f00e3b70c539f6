"""log π₀ of responses whose prompt in training differs from the prompt that they were sampled from.

The difference between the log-probs after the two prompts is logged (`drawn/gap`). `logprob_mismatch` then compares a
forward pass with itself, so a few samples are also scored after their sampling prompt (`drawn/mismatch`).
"""

from typing import Literal

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.masked import masked_sum
from vigneron.core.off_policy import topr_weight
from vigneron.rollout.grape import with_sampling_prompts
from vigneron.training.parts import Parts

# Samples of a step that are scored after their sampling prompt.
MISMATCH_SAMPLES = 8


def score_after_training_prompt(batch: Batch, parts: Parts) -> Batch:
    """Fill in `behaviour_BT` of the responses that were sampled from another prompt, or not sampled at all."""
    unknown = batch.samples.behaviour_BT.isnan().any(1).nonzero()[:, 0].tolist()
    if not unknown:
        return batch
    part = batch.rows(unknown)
    logprobs_BT = parts.precompute(part, parts.policy_pass)["behaviour_BT"]
    behaviour_BT = batch.samples.behaviour_BT.clone()
    behaviour_BT[unknown] = 0.0
    behaviour_BT[unknown, : logprobs_BT.shape[1]] = logprobs_BT
    return batch.with_samples(behaviour_BT=behaviour_BT).with_signals(
        metrics={**batch.signals.metrics, **_metrics(part, logprobs_BT, parts)}
    )


def corrected(batch: Batch, correction: Literal["truncated", "topr"]) -> Batch:
    """Weight the advantages of responses that were sampled from another prompt than they are trained after.

    truncated   min(1, π₀(token | training prompt) / π₀(token | sampling prompt))
    topr        1 where A ≥ 0, else min(1, the same ratio of the whole response)

    Without it an unlikely token with a negative advantage is pushed down without limit, and the distributions after the
    two prompts drift apart. `truncated` takes from good responses too, `topr` only from bad ones. Dataset answers were
    not sampled and have weight 1.
    """
    if batch.samples.drawn_BT is None:
        return batch
    trained_BT, drawn_BT, mask_BT = batch.samples.behaviour_BT, batch.samples.drawn_BT, batch.samples.mask_BT
    advantages_BT = batch.signals.advantages_BT
    if correction == "truncated":
        weight_BT = (trained_BT - drawn_BT).exp().clamp(max=1.0)
    else:
        texts = (masked_sum(trained_BT, mask_BT), masked_sum(drawn_BT, mask_BT), advantages_BT[:, 0])
        weight_BT = topr_weight(*texts)[:, None].expand_as(advantages_BT)
    weight_BT = torch.where(weight_BT.isnan(), 1.0, weight_BT)
    weighted = batch.with_signals(advantages_BT=advantages_BT * weight_BT)
    return weighted.with_metrics({"drawn/weight": float(weight_BT[mask_BT].mean())})


@torch.no_grad()
def _metrics(batch: Batch, trained_BT: Tensor, parts: Parts) -> dict[str, float]:
    drawn = (~batch.samples.drawn_BT.isnan().any(1)).nonzero()[:, 0].tolist()
    if not drawn:
        return {}
    gap_BT = (batch.samples.drawn_BT - trained_BT).abs()[drawn]
    few = with_sampling_prompts(batch.rows(drawn[:MISMATCH_SAMPLES]))
    mismatch_BT = (parts.policy_pass(few)["behaviour_BT"] - few.samples.drawn_BT).abs()
    return {
        "drawn/gap": float(gap_BT[batch.samples.mask_BT[drawn]].mean()),
        "drawn/mismatch": float(mismatch_BT[few.samples.mask_BT].mean()),
    }
