"""Responses that are trained behind another text than they were drawn under: what π₀ thinks of them there.

How far the two texts lie apart is logged (`drawn/gap`). `logprob_mismatch` then compares what was just scored with
itself, so a few samples are also scored behind the text they were drawn under (`drawn/mismatch`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.policy.rank_batches import map_microbatches
from vigneron.rollout.grape import behind_drawn_text

Look = Callable[[Batch], dict[str, Tensor]]
# Samples of a step that are scored behind the text they were drawn under.
CHECKED = 8


def behind_trained_text(batch: Batch, look: Look, tokens_at_once: int) -> Batch:
    """log π₀ of the responses that were drawn behind another text, or not drawn at all: `look` gives `behaviour_BT`."""
    unknown = batch.samples.behaviour_BT.isnan().any(1).nonzero()[:, 0].tolist()
    if not unknown:
        return batch
    some = batch.rows(unknown)
    found_BT = map_microbatches(some, tokens_at_once, look)["behaviour_BT"]
    behaviour_BT = batch.samples.behaviour_BT.clone()
    behaviour_BT[unknown] = 0.0
    behaviour_BT[unknown, : found_BT.shape[1]] = found_BT
    return batch.with_samples(behaviour_BT=behaviour_BT).with_signals(
        metrics={**batch.signals.metrics, **_figures(some, found_BT, look)}
    )


def corrected(batch: Batch) -> Batch:
    """Advantages times min(1, π₀(token | trained text) / π₀(token | the text it was drawn under)).

    Without it an unlikely token with a negative advantage is pushed down for good, and the two texts drift apart. What
    was not drawn at all has no such ratio, and counts whole.
    """
    if batch.samples.drawn_BT is None:
        return batch
    ratio_BT = (batch.samples.behaviour_BT - batch.samples.drawn_BT).exp().clamp(max=1.0)
    weight_BT = torch.where(ratio_BT.isnan(), 1.0, ratio_BT)
    figures = {**batch.signals.metrics, "drawn/weight": float(weight_BT[batch.samples.mask_BT].mean())}
    return batch.with_signals(advantages_BT=batch.signals.advantages_BT * weight_BT, metrics=figures)


def _figures(batch: Batch, behind_trained_BT: Tensor, look: Look) -> dict[str, float]:
    drawn = (~batch.samples.drawn_BT.isnan().any(1)).nonzero()[:, 0].tolist()
    if not drawn:
        return {}
    gap_BT = (batch.samples.drawn_BT - behind_trained_BT).abs()[drawn]
    few = behind_drawn_text(batch.rows(drawn[:CHECKED]))
    mismatch_BT = (look(few)["behaviour_BT"] - few.samples.drawn_BT).abs()
    return {
        "drawn/gap": float(gap_BT[batch.samples.mask_BT[drawn]].mean()),
        "drawn/mismatch": float(mismatch_BT[few.samples.mask_BT].mean()),
    }
