"""log π₀ of responses whose prompt in training differs from the prompt that they were sampled from.

The difference between the log-probs after the two prompts is logged (`drawn/gap`). `logprob_mismatch` then compares a
forward pass with itself, so a few samples are also scored after their sampling prompt (`drawn/mismatch`).
"""

import torch
from torch import Tensor

from vigneron.batch import Batch
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


def corrected(batch: Batch) -> Batch:
    """Multiply the advantages by min(1, π₀(token | training prompt) / π₀(token | sampling prompt)).

    Without it an unlikely token with a negative advantage is pushed down without limit, and the distributions after the
    two prompts drift apart. Dataset answers were not sampled and have weight 1.
    """
    if batch.samples.drawn_BT is None:
        return batch
    ratio_BT = (batch.samples.behaviour_BT - batch.samples.drawn_BT).exp().clamp(max=1.0)
    weight_BT = torch.where(ratio_BT.isnan(), 1.0, ratio_BT)
    metrics = {**batch.signals.metrics, "drawn/weight": float(weight_BT[batch.samples.mask_BT].mean())}
    return batch.with_signals(advantages_BT=batch.signals.advantages_BT * weight_BT, metrics=metrics)


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
