"""The KL coefficient over a run: fixed, or adapted to a target."""

from dataclasses import dataclass
from typing import Any

from vigneron.config import AdaptiveKlConfig, KlConfig, PenaltyConfig, RewardKlConfig
from vigneron.core.kl import adapted_coefficient
from vigneron.training.method import Metrics

FACTORS = {"pgsrm": 1.5, "ppo": 2.0}


@dataclass
class KlController:
    coefficient: float
    adaptive: AdaptiveKlConfig | None = None
    watches: str = "kl"

    @classmethod
    def of(cls, options: KlConfig | RewardKlConfig | PenaltyConfig) -> "KlController":
        """The KL it watches is the one that is penalised."""
        watches = "kl" if options.against == "reference" else "kl_previous"
        return cls(options.coefficient, options.adaptive, watches)

    def observe(self, metrics: Metrics) -> Metrics:
        """Adapt to the KL that was measured; what the step was trained with is logged."""
        used = self.coefficient
        if self.adaptive is not None and self.watches in metrics:
            self.coefficient = adapted_coefficient(
                used,
                metrics[self.watches],
                target=self.adaptive.target,
                minimum=self.adaptive.minimum,
                maximum=self.adaptive.maximum,
                factor=FACTORS[self.adaptive.rule],
            )
        return {"kl_coefficient": used}

    def scalars(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load(self, scalars: dict[str, Any]) -> None:
        self.coefficient = float(scalars["coefficient"])
