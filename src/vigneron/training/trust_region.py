"""Trust-region update (eq. 10): one natural-gradient step, the longest with KL(π₀ ‖ π₁) ≤ δ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import ConstraintConfig
from vigneron.core.trust_region import conjugate_gradient, largest_step, line_search
from vigneron.distributed import ranks
from vigneron.policy.logprobs import Scores
from vigneron.policy.model import Policy
from vigneron.timing import phase
from vigneron.training.method import Metrics
from vigneron.training.update import GradientUpdate, Term, TermValue, check_finite


class PolicyMeasures(NamedTuple):
    """The surrogate and KL(π₀ ‖ π₁) over tokens of the current policy π₁ on the step's samples."""

    surrogate: float
    kl_mean: float
    kl_max: float


@dataclass
class TrustRegionUpdate:
    """`update(batch)`: the actor by trust region, then the critic by gradient.

    `score` includes the exact KL(π₀ ‖ π₁); `product` multiplies a vector with the Fisher matrix.
    """

    policy: Policy
    options: ConstraintConfig
    score: Callable[[Batch], Scores]
    surrogate: Callable[[Batch, Scores], Term]
    metrics: Callable[[Batch, Scores], list[Term]]
    product: Callable[[Batch, Tensor], Tensor]
    critic: GradientUpdate

    def __call__(self, batch: Batch) -> Metrics:
        if not batch.trained_BT.any():
            return self.critic(batch)
        metrics = self._move(batch)
        moved = metrics["trust/share"] > 0
        return metrics | self.critic(batch, ", after the policy's update of this step, which stays" if moved else "")

    def _move(self, batch: Batch) -> Metrics:
        with phase("gradient"):
            metrics = self._differentiate(batch)
            if batch.packing.owners is not None:
                ranks.sum_gradients(weight for _, weight in self.policy.trainable())
        gradient_P = self._take_gradient()
        check_finite([TermValue("grad_norm/actor", float(gradient_P.norm()))])
        with phase("conjugate gradient"):
            step_P = self._longest_step(batch, gradient_P)
        start_P = self._weights()
        before = after = self._measure(batch)

        def evaluate(share: float) -> tuple[float, float]:
            nonlocal after
            self._set(start_P + share * step_P)
            after = self._measure(batch)
            return after.surrogate, after.kl_max if self.options.over == "max" else after.kl_mean

        with phase("line search"):
            share = line_search(
                evaluate, loss_before=before.surrogate, delta=self.options.delta, attempts=self.options.attempts
            )
        if share is None:
            self._set(start_P)
            after = before
        return metrics | {
            "grad_norm/actor": float(gradient_P.norm()),
            "trust/share": share or 0.0,
            "trust/refused": float(share is None),
            "trust/improvement": before.surrogate - after.surrogate,
            "kl_previous": after.kl_mean,
            "kl_previous/max": after.kl_max,
        }

    def _differentiate(self, batch: Batch) -> Metrics:
        """Accumulate the surrogate's gradient in the weights, and return the metrics of the sampling policy."""

        def terms(part: Batch) -> list[Term]:
            now = self.score(part)
            return [self.surrogate(part, now), *self.metrics(part, now)]

        return {name: value for name, value, _ in self.critic.accumulate(batch, terms)}

    @torch.no_grad()
    def _measure(self, batch: Batch) -> PolicyMeasures:
        largest = 0.0

        def terms(part: Batch) -> list[Term]:
            nonlocal largest
            now = self.score(part)
            largest = max(largest, float(torch.where(part.trained_BT, now.exact_kl_BT, 0.0).max()))
            return [self.surrogate(part, now), Term("kl", now.exact_kl_BT)]

        sums = {name: value for name, value, _ in self.critic.accumulate(batch, terms)}
        return PolicyMeasures(sums["loss/policy"], sums["kl"], ranks.all_reduce_max(largest))

    def _longest_step(self, batch: Batch, gradient_P: Tensor) -> Tensor:
        """−F⁻¹g, scaled to the boundary of the trust region in its second-order approximation."""
        damping = self.options.damping

        def product(vector_P: Tensor) -> Tensor:
            return self.product(batch, vector_P) + damping * vector_P

        # Of the unit vector: the stopping criterion must not depend on the size of the gradient.
        unit_P = -gradient_P / gradient_P.norm().clamp(min=1e-30)
        direction_P = conjugate_gradient(product, unit_P, iterations=self.options.iterations)
        curvature = float(direction_P @ product(direction_P))
        return largest_step(curvature, self.options.delta) * direction_P

    def _take_gradient(self) -> Tensor:
        weights = [weight for _, weight in self.policy.trainable()]
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad.detach() for w in weights]
        gradient_P = torch.cat([g.flatten() for g in gradients])
        for weight in weights:
            weight.grad = None
        return gradient_P

    def _weights(self) -> Tensor:
        return torch.cat([weight.detach().flatten() for _, weight in self.policy.trainable()])

    @torch.no_grad()
    def _set(self, weights_P: Tensor) -> None:
        weights = [weight for _, weight in self.policy.trainable()]
        for weight, part in zip(weights, weights_P.split([w.numel() for w in weights]), strict=True):
            weight.copy_(part.view_as(weight))

    def begin_at(self, step: int) -> None:
        self.critic.begin_at(step)

    def tensors(self) -> dict[str, Tensor]:
        return self.critic.tensors()

    def weights(self) -> dict[str, Tensor]:
        return self.critic.weights()

    def scalars(self) -> dict[str, Any]:
        return self.critic.scalars()

    def load(self, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        self.critic.load(tensors, scalars)
