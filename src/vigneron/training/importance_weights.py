"""Importance weights for samples of another policy than the one that is trained: an older version of it, or an engine
that rounds differently.

Their log-probs, recorded at sampling, are the behaviour policy's. A token's importance weight

    w = min(c, π₀(token) / behaviour(token))

with π₀ the policy at the step's start, multiplies its advantage; ratios to π₀, which clipping and TRPO compare, then
begin at 1 as always. With c = ∞ the mean of w·A under the behaviour policy is that of A under π₀, token by token; the
limit trades a little of that for weights that cannot explode. `correction_mode: mask` drops what is outside of 1/c and
c instead; `correction_level: text` takes the geometric mean of a text's ratios for all of its tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.masked import masked_sum
from vigneron.timing import phase
from vigneron.training.parts import Parts

# Nats: e to it is finite in float32.
LARGEST_GAP = 60.0


@dataclass(frozen=True)
class WeightedAdvantage:
    """The advantage slot of a method, its advantages multiplied by importance weights."""

    advantage: Callable[[Batch], Batch]
    parts: Parts

    def __call__(self, batch: Batch) -> Batch:
        behaviour_BT = batch.samples.behaviour_BT
        with phase("importance"):
            now_BT = self.parts.precompute(batch, self.parts.policy_pass)["behaviour_BT"]
        scale = self.parts.config.scale
        weights_BT, metrics = importance(
            now_BT,
            behaviour_BT,
            batch.trained_BT,
            scale.correction_limit,
            mode=scale.correction_mode,
            level=scale.correction_level,
        )
        known_BT = torch.where(behaviour_BT.isnan(), behaviour_BT, now_BT)  # unknown stays unknown
        # The hidden states after the prompts are the behaviour policy's too.
        rescored = batch.with_samples(behaviour_BT=known_BT, prompt_hidden_BH=None).with_metrics(metrics)
        batch = self.advantage(rescored)
        if batch.signals.advantages_BT is None or len(weights_BT) != len(batch):
            return batch
        return batch.with_signals(advantages_BT=batch.signals.advantages_BT * weights_BT)


def importance(
    now_BT: Float[Tensor, "B T"],
    behaviour_BT: Float[Tensor, "B T"],
    mask_BT: Tensor,
    limit: float,
    *,
    mode: Literal["truncate", "mask"] = "truncate",
    level: Literal["token", "text"] = "token",
) -> tuple[Float[Tensor, "B T"], dict[str, float]]:
    """min(limit, π₀ / behaviour), 1 where the behaviour is not known; and metrics over the tokens trained on."""
    gap_BT = now_BT - behaviour_BT
    if level == "text":
        known_BT = mask_BT & ~gap_BT.isnan()
        mean_B = masked_sum(gap_BT, known_BT) / known_BT.sum(1).clamp(min=1)
        gap_BT = torch.where(gap_BT.isnan(), gap_BT, mean_B[:, None])
    ratio_BT = torch.where(gap_BT.isnan(), 1.0, gap_BT.clamp(max=LARGEST_GAP).exp())
    weights_BT = ratio_BT.clamp(max=limit)
    if mode == "mask":
        weights_BT = torch.where((ratio_BT > limit) | (ratio_BT < 1 / limit), 0.0, ratio_BT)
    ratio_N, gap_N = ratio_BT[mask_BT], gap_BT[mask_BT & ~gap_BT.isnan()].abs()
    if not len(ratio_N):
        return weights_BT, {}
    return weights_BT, {
        "importance/mean": float(ratio_N.mean()),
        "importance/max": float(ratio_N.max()),
        "importance/limited": float(((ratio_N > limit) | ((ratio_N < 1 / limit) & (mode == "mask"))).float().mean()),
        "importance/gap": float(gap_N.mean()) if len(gap_N) else 0.0,
    }
