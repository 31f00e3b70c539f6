"""Samples of another policy than the one that is trained: an older version of it, or an engine with its own rounding.

Their log-probs, stored when they were sampled, are the behaviour policy's. A token's importance weight

    w = min(c, π₀(token) / behaviour(token))

with π₀ the policy at the step's start, multiplies its advantage; ratios to π₀, which clipping and TRPO compare, then
begin at 1 as ever. With c = ∞ the mean of w·A under the behaviour policy is that of A under π₀, token by token; the
limit trades a little of that for weights that cannot explode.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.core.draws import Sampling
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.timing import phase

# Nats: e to it is finite in float32.
LARGEST_GAP = 60.0


@dataclass(frozen=True)
class Correction:
    """`correct(batch, advantage)`: the method's advantages, weighted."""

    policy: Policy
    sampling: Sampling
    limit: float
    tokens_at_once: int

    def __call__(self, batch: Batch, advantage: Callable[[Batch], Batch]) -> Batch:
        with phase("importance"):
            now_BT = map_parts(batch, self.tokens_at_once, self._look)["behaviour_BT"]
        weights_BT, figures = importance(now_BT, batch.behaviour_BT, batch.trained_BT, self.limit)
        known_BT = torch.where(batch.behaviour_BT.isnan(), batch.behaviour_BT, now_BT)  # unknown stays so
        figures = {**batch.figures, **figures}
        # States after the prompts are of whoever sampled, too.
        batch = advantage(replace(batch, behaviour_BT=known_BT, prompt_hidden_BH=None, figures=figures))  # type: ignore[arg-type]
        if batch.advantages_BT is None or len(weights_BT) != len(batch):
            return batch
        return replace(batch, advantages_BT=batch.advantages_BT * weights_BT)

    @torch.no_grad()
    def _look(self, part: Batch) -> dict[str, Tensor]:
        return {"behaviour_BT": score(self.policy, part, self.sampling).logprobs_BT}


def importance(
    now_BT: Float[Tensor, "B T"], behaviour_BT: Float[Tensor, "B T"], mask_BT: Tensor, limit: float
) -> tuple[Float[Tensor, "B T"], dict[str, float]]:
    """min(limit, π₀ / behaviour), 1 where the behaviour is not known; and figures of it, over the tokens trained on."""
    gap_BT = now_BT - behaviour_BT
    ratio_BT = torch.where(gap_BT.isnan(), 1.0, gap_BT.clamp(max=LARGEST_GAP).exp())
    weights_BT = ratio_BT.clamp(max=limit)
    seen_N, gap_N = ratio_BT[mask_BT], gap_BT[mask_BT & ~gap_BT.isnan()].abs()
    if not len(seen_N):
        return weights_BT, {}
    return weights_BT, {
        "importance/mean": float(seen_N.mean()),
        "importance/max": float(seen_N.max()),
        "importance/limited": float((seen_N > limit).float().mean()),
        "importance/gap": float(gap_N.mean()) if len(gap_N) else 0.0,
    }
