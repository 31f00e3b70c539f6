"""The difference between log-probs at sampling and in training, which should be rounding.

Where the sampler is exact they are the same numbers, computed twice. A larger difference means that samples are drawn
from another policy than the one that is trained: a pass that loses a window, stale weights, a tokenizer mismatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.rollout.engine.sample import sampler_of

METRICS = ("logprob_mismatch", "drawn/mismatch")


@dataclass(frozen=True)
class MismatchLimits:
    """Mean nats per token of a step: from `warn` on more than rounding, from `stop` on not the same policy."""

    dtype: str
    warn: float
    stop: float


# Rounding gives some 1e-5 in float32, 0.002 to 0.02 in bfloat16; a lost sliding window 0.5 to 2.
FLOAT32 = MismatchLimits("float32", 1e-3, 0.1)
BFLOAT16 = MismatchLimits("bfloat16", 0.05, 0.5)


def mismatch_limits(config: Config, policy: Policy) -> MismatchLimits | None:
    """The limits of a run; None if its samples are not the policy's own: weighted, or of a user's rollout."""
    own = config.method.reads == "prompts" and config.rollout is None and not config.scale.staleness
    if not own or not sampler_of(policy).exact:
        return None
    return BFLOAT16 if policy.compute_dtype == torch.bfloat16 else FLOAT32


def mismatch_warning(metrics: Mapping[str, Any], limits: MismatchLimits | None) -> str | None:
    """What a step's mismatch means, if it is more than rounding. Raises if the run should not continue."""
    value = max((float(metrics[name]) for name in METRICS if metrics.get(name) is not None), default=0.0)
    if limits is None or not value >= limits.warn:
        return None
    text = (
        f"logprob_mismatch is {value:.2g} nats per token: sampling and training compute different log-probs for the "
        f"same tokens, and rounding in {limits.dtype} explains less than {limits.warn:g}"
    )
    if value >= limits.stop:
        raise UserError(
            f"{text}. From {limits.stop:g} on the samples are not the trained policy's, so the run stops: its "
            "gradients would be wrong. Please report the model; `model.dtype=float32` and `model.compile=false "
            "model.graphs=false` narrow the cause down"
        )
    return f"{text}. Ratios and clipping are off by as much; `model.dtype=float32` shows whether it is rounding"
