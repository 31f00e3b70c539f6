"""The KL of each method: in the loss, in the reward, or from the policy that sampled; fixed, or adapted to a target."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.values import NotNegative, Strict


class AdaptiveKlConfig(Strict):
    """A rule, bounded: × factor above 1.5 · target, ÷ factor below target / 1.5."""

    rule: Literal["pgsrm", "ppo"] = "pgsrm"
    """The factor: 1.5 as the released PGSRM code has it, or the PPO paper's 2."""
    target: Annotated[float, Field(gt=0)] = 0.8
    """The KL that the coefficient is adapted to, in nats per token."""
    minimum: NotNegative = 1e-6
    """The smallest coefficient."""
    maximum: NotNegative = 0.1
    """The largest coefficient."""

    @model_validator(mode="after")
    def bounds_do_not_cross(self) -> "AdaptiveKlConfig":
        if self.minimum > self.maximum:
            raise ValueError(f"`minimum` ({self.minimum}) is above `maximum` ({self.maximum})")
        return self


def check_bounds(coefficient: float, bounds: AdaptiveKlConfig | None) -> None:
    if bounds and not bounds.minimum <= coefficient <= bounds.maximum:
        raise ValueError(f"`coefficient` is outside of `adaptive`'s bounds, {bounds.minimum} to {bounds.maximum}")


class KlConfig(Strict):
    """A KL penalty in the loss."""

    coefficient: NotNegative = 5e-5
    """β, the weight of the KL in the loss."""
    estimator: Literal["exact", "k1", "k2", "k3"] = "exact"
    """exact: over the vocabulary; k1, k2, k3: from the sampled token. exact and k2 have the gradient of
    KL(π ‖ reference), k3 that of KL(reference ‖ π); k1's is 0 in expectation: it does not hold the policy back."""
    against: Literal["reference", "previous"] = "reference"
    """The policy at the run's start, or the one that sampled; for the latter name k2 or another estimator."""
    adaptive: AdaptiveKlConfig | None = None
    """Changes the coefficient so that the KL stays near a target; unset: the coefficient is fixed."""

    @model_validator(mode="after")
    def starts_within_its_bounds(self) -> "KlConfig":
        check_bounds(self.coefficient, self.adaptive)
        return self

    @model_validator(mode="after")
    def exact_needs_the_reference(self) -> "KlConfig":
        if self.against == "previous" and self.estimator == "exact":
            raise ValueError("`against: previous` is estimated from sampled tokens: add `estimator: k2`")
        return self


def needs_reference_head(method: Any) -> bool:
    """Whether the update computes the exact KL to the reference, by its head."""
    options: Any = getattr(method, "kl", None)
    return getattr(options, "estimator", None) == "exact" and options.coefficient > 0


def has_exact_kl(method: Any) -> bool:
    """Whether the update computes an exact KL: to the reference, or from the policy that sampled."""
    return needs_reference_head(method) or method.keeps_previous


class GrpoKlConfig(KlConfig):
    """GRPO's own KL is `{coefficient: 0.04, estimator: k3}`; 0 leaves out the reference's pass altogether."""

    coefficient: NotNegative = 0.04
    """β, the weight of the KL in the loss."""


class GrapeKlConfig(GrpoKlConfig):
    """The paper has none; 0.01 is what the best form of docs/results/rubric-study.md had."""

    coefficient: NotNegative = 0.01
    """β, the weight of the KL in the loss."""


class ReinforceKlConfig(KlConfig):
    """In the loss; none by default."""

    coefficient: NotNegative = 0.0
    """β, the weight of the KL in the loss."""


class RewardKlConfig(Strict):
    """β · (log π₀ − log reference) at each token, taken off the reward (eq. 12)."""

    coefficient: NotNegative = 0.05
    """β, the weight of the KL in the reward."""
    adaptive: AdaptiveKlConfig | None = None
    against: ClassVar[str] = "reference"

    @model_validator(mode="after")
    def starts_within_its_bounds(self) -> "RewardKlConfig":
        check_bounds(self.coefficient, self.adaptive)
        return self


class AdaptivePenaltyConfig(AdaptiveKlConfig):
    """The same, for the KL between steps."""

    target: Annotated[float, Field(gt=0)] = 0.01
    """The KL that the coefficient is adapted to, in nats per token."""
    minimum: NotNegative = 1e-4
    """The smallest coefficient."""
    maximum: NotNegative = 1e4
    """The largest coefficient."""


class PenaltyConfig(Strict):
    """Eq. 9: β · KL(π₀ ‖ π₁), exact over the vocabulary. With `adaptive: {rule: ppo}` the PPO paper's other form."""

    coefficient: NotNegative = 1.0
    """β, the weight of the KL in the loss."""
    adaptive: AdaptivePenaltyConfig | None = None
    against: ClassVar[str] = "previous"

    @model_validator(mode="after")
    def starts_within_its_bounds(self) -> "PenaltyConfig":
        check_bounds(self.coefficient, self.adaptive)
        return self
