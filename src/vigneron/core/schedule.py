"""Learning rate schedules, as a factor of the peak learning rate."""

import math
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]


def learning_rate_factor(update: int, total: int, *, shape: Shape = "constant", warmup: int = 0) -> float:
    """The factor for update 0, 1, … total − 1: linear warm-up over `warmup` updates, then the shape down to 0."""
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if shape == "constant":
        return 1.0
    progress = (update - warmup) / max(total - warmup, 1)
    return 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
