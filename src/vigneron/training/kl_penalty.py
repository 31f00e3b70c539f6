"""The KL to the reference, whole: the reference's pass, the estimator, the coefficient over a run, the metric."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import AdaptiveKlConfig, KlConfig, PenaltyConfig, RewardKlConfig
from vigneron.core import kl
from vigneron.core.losses import AggregateMode
from vigneron.policy.logprobs import ExactKl, Scores
from vigneron.training.method import Metrics
from vigneron.training.parts import Parts
from vigneron.training.update import Term

FACTORS = {"pgsrm": 1.5, "ppo": 2.0}


@dataclass
class KlController:
    """The coefficient: fixed, or adapted to a target. A part of the run's state."""

    coefficient: float
    adaptive: AdaptiveKlConfig | None = None
    watches: str = "kl"
    """The metric it adapts to: that of the KL that is penalised."""

    @classmethod
    def of(cls, options: KlConfig | RewardKlConfig | PenaltyConfig) -> "KlController":
        return cls(options.coefficient, options.adaptive, "kl" if options.against == "reference" else "kl_previous")

    def observe(self, metrics: Metrics) -> Metrics:
        """Adapt to the KL that was measured. Logs the coefficient that the step was trained with."""
        used = self.coefficient
        if self.adaptive is not None and self.watches in metrics:
            self.coefficient = kl.adapted_coefficient(
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


class KlPenalty:
    """β · D_KL(π ‖ reference) as a method uses it.

    `logged`: the reference scores the samples, and the KL is logged. `penalised`: it is a term of the loss.
    """

    def __init__(
        self,
        parts: Parts,
        options: KlConfig | RewardKlConfig | PenaltyConfig,
        *,
        logged: bool = True,
        penalised: bool = False,
        exact_metric: bool = False,
    ) -> None:
        self._parts, self._options, self._logged, self._penalised = parts, options, logged, penalised
        self.controller = KlController.of(options)
        is_exact = penalised and isinstance(options, KlConfig) and options.estimator == "exact"
        self.exact = ExactKl(parts.reference) if is_exact else None
        """What `parts.score` needs for the exact KL over the vocabulary; None for an estimator."""
        self._exact_metric = exact_metric and is_exact

    @property
    def coefficient(self) -> float:
        return self.controller.coefficient

    @property
    def passes(self) -> list[Callable[[Batch], dict[str, Tensor]]]:
        """For `parts.precompute`: the reference's pass, where it is needed."""
        return [partial(self._parts.reference_pass, keep_hidden=self.exact is not None)] if self._logged else []

    def terms(self, batch: Batch, now: Scores, mode: AggregateMode = "tokens") -> list[Term]:
        """The penalty, and the metric `kl`."""
        terms = []
        if self._penalised:
            terms.append(Term("loss/kl", self._values(batch, now), self.coefficient, mode))
        return [*terms, self._metric(batch, now)] if self._logged else terms

    def _values(self, batch: Batch, now: Scores) -> Tensor:
        """A value per token of the KL that the options name, to the reference or to the policy that sampled."""
        options = self._options
        assert isinstance(options, KlConfig)
        if options.estimator == "exact":
            return now.exact_kl_BT
        estimator = kl.ESTIMATORS[options.estimator]
        if options.against == "reference":
            return estimator(now.untruncated_BT, batch.signals.reference_BT)
        return estimator(now.logprobs_BT, batch.samples.behaviour_BT)

    def _metric(self, batch: Batch, now: Scores) -> Term:
        """D_KL(π₀ ‖ reference) by k1, unbiased on the policy's own samples; exact where samples are not all its own."""
        if self._exact_metric:
            return Term("kl", now.exact_kl_BT.detach(), first_update_only=True)
        estimate_BT = kl.k1(now.untruncated_BT, batch.signals.reference_BT)
        return Term("kl", estimate_BT.detach(), first_update_only=True)
