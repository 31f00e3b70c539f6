"""The methods, each with keys of its own, and their KL."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.values import NotNegative, Positive, Strict


class AdaptiveKlConfig(Strict):
    """The released PGSRM rule, bounded: × 1.5 above 1.5 · target, ÷ 1.5 below target / 1.5."""

    target: Annotated[float, Field(gt=0)] = 0.8
    minimum: NotNegative = 1e-6
    maximum: NotNegative = 0.1

    @model_validator(mode="after")
    def bounds_do_not_cross(self) -> "AdaptiveKlConfig":
        if self.minimum > self.maximum:
            raise ValueError(f"`minimum` ({self.minimum}) is above `maximum` ({self.maximum})")
        return self


class KlConfig(Strict):
    coefficient: NotNegative = 5e-5
    estimator: Literal["exact", "k1", "k2", "k3"] = "exact"
    """exact and k2 have the reverse KL's gradient; k1 has none in expectation, k3 the forward KL's."""
    against: Literal["reference", "previous"] = "reference"
    """The policy at the run's start, or the one that sampled; for the latter name k2 or another estimator."""
    adaptive: AdaptiveKlConfig | None = None

    @model_validator(mode="after")
    def starts_within_its_bounds(self) -> "KlConfig":
        bounds = self.adaptive
        if bounds and not bounds.minimum <= self.coefficient <= bounds.maximum:
            raise ValueError(f"`coefficient` is outside of `adaptive`'s bounds, {bounds.minimum} to {bounds.maximum}")
        return self

    @model_validator(mode="after")
    def exact_needs_the_reference(self) -> "KlConfig":
        if self.against == "previous" and self.estimator == "exact":
            raise ValueError("`against: previous` is estimated from sampled tokens: add `estimator: k2`")
        return self


class MethodOptions(Strict):
    """What the rest of the code asks a method's options, so that it never asks for a method's name."""

    reads: ClassVar[Literal["prompts", "demonstrations", "pairs"]] = "prompts"
    """What its rows are: prompts to sample for, or texts that are there already, which nothing is sampled for."""
    trains: ClassVar[Literal["policy", "scorer"]] = "policy"
    """A language model, or a model that gives a text one number."""
    has_critic: ClassVar[bool] = False
    compares_a_group: ClassVar[bool] = False


class ActorCriticConfig(MethodOptions):
    """PGSRM's Algorithm 1 (`pgsrm`, A.4), and §3.3's clipped objective."""

    has_critic: ClassVar[bool] = True
    name: Literal["actor_critic"]
    faithful: bool = False
    """Algorithm 1 to the letter: k1 differentiated, the value read after the last completion token."""
    updates_per_step: Positive = 1
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] | None = None
    """None: the unclipped policy loss of Algorithm 1. A number: §3.3's clipped ratio."""
    entropy_coefficient: NotNegative = 0.01
    value_coefficient: NotNegative = 0.5
    value_position: Literal["last_prompt", "last_completion"] = "last_prompt"
    kl: KlConfig = KlConfig()

    @model_validator(mode="before")
    @classmethod
    def fill_faithful(cls, given: Any) -> Any:
        """`faithful` decides the estimator and the value's position; a contradiction is an error."""
        if not isinstance(given, Mapping) or given.get("faithful") is not True:
            return given
        kl = given.get("kl") or {}
        if isinstance(kl, KlConfig):
            kl = kl.model_dump(exclude_unset=True)
        if not isinstance(kl, Mapping):
            return given
        wanted = {"kl.estimator": "k1", "kl.against": "reference", "value_position": "last_completion"}
        found = {
            "kl.estimator": kl.get("estimator"),
            "kl.against": kl.get("against"),
            "value_position": given.get("value_position"),
        }
        for key, value in wanted.items():
            if found[key] not in (None, value):
                raise ValueError(f"`faithful: true` means `{key}: {value}`: leave out one of the two")
        if given.get("clip_epsilon") is not None:
            raise ValueError("`faithful: true` has no clipping: leave out `clip_epsilon`")
        return {
            **given,
            "value_position": "last_completion",
            "kl": {**kl, "estimator": "k1", "against": "reference"},
        }

    @model_validator(mode="after")
    def several_updates_need_the_ratio(self) -> "ActorCriticConfig":
        if self.updates_per_step > 1 and self.clip_epsilon is None:
            raise ValueError(
                "several updates a step need `clip_epsilon`: without a ratio the later ones are off-policy"
            )
        return self


class GrpoKlConfig(KlConfig):
    """GRPO's own KL is `{coefficient: 0.04, estimator: k3}`; 0 leaves out the reference's pass altogether."""

    coefficient: NotNegative = 0.04


class GrpoConfig(MethodOptions):
    """GRPO as Dr. GRPO (`rlmt-grape` eq. 13-14), with a KL to the reference. The first GRPO's biases go by name."""

    compares_a_group: ClassVar[bool] = True
    name: Literal["grpo"]
    updates_per_step: Positive = 1
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    aggregation: Literal["tokens", "samples", "sum_over_samples"] = "tokens"
    """tokens: the mean over all tokens. sum_over_samples: eq. 14. samples: the first GRPO's 1/length."""
    scale_by_std: bool = False
    """Divide a group's advantages by the std of its rewards, as the first GRPO does."""
    kl: GrpoKlConfig = GrpoKlConfig()


class SftConfig(MethodOptions):
    """Fine-tuning on demonstrations (`rlmt-grape` eq. 1-2): the negative log-likelihood of texts or their answers."""

    reads: ClassVar[Literal["prompts", "demonstrations", "pairs"]] = "demonstrations"
    name: Literal["sft"]
    loss_on: Literal["answers", "text"] = "answers"
    """answers: what the assistant says, every turn of it in `messages`. text: the prompts too, as eq. 1 is written."""
    packing: bool = False
    """Short samples stand behind each other in one row, kept apart by a mask: less padding, the same gradient."""
    aggregation: Literal["tokens", "samples", "sum_over_samples"] = "tokens"


MethodConfig = Annotated[ActorCriticConfig | GrpoConfig | SftConfig, Field(discriminator="name")]
