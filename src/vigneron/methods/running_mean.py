"""A baseline that is the running mean of earlier rewards."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vigneron.training.method import Metrics


@dataclass
class RunningMean:
    """Of the rewards of earlier steps, exponentially weighted; 0 before the first. A part of the run's state."""

    decay: float
    total: float = 0.0
    weight: float = 0.0

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    def before(self, rewards_B: Tensor) -> float:
        """The mean without these rewards, which it then takes in."""
        used, mean = self.value, float(rewards_B.nanmean())
        if math.isnan(mean):  # all of them are missing
            return used
        self.total = self.decay * self.total + (1 - self.decay) * mean
        self.weight = self.decay * self.weight + (1 - self.decay)
        return used

    def observe(self, metrics: Metrics) -> Metrics:
        """The update's hook after a step: nothing to add."""
        return {}

    def scalars(self) -> dict[str, Any]:
        return {"total": self.total, "weight": self.weight}

    def load(self, scalars: dict[str, Any]) -> None:
        self.total, self.weight = scalars["total"], scalars["weight"]
