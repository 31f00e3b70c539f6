"""The learning rate over a run, as a factor of its peak."""

import math
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]


def learning_rate_factor(update: int, total: int, *, shape: Shape = "constant", warmup: int = 0) -> float:
    """Factor for update 0, 1, … total − 1: a linear rise over `warmup` updates, then the shape down to 0."""
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if shape == "constant":
        return 1.0
    progress = (update - warmup) / max(total - warmup, 1)
    return 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
