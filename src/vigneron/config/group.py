"""Group-relative methods: GRPO, and GRAPE with its mix of responses."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.kl import GrpoKlConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import NotNegative, Positive, Strict

# Options of the clipped ratio.
CLIPPING = ("clip_epsilon", "clip_epsilon_high", "clip_delta", "level")
ClipLevel = Literal["token", "sequence", "geometric"]


class GroupRelativeConfig(MethodOptions):
    """Options of GRPO and GRAPE: the clipped ratio with a group-relative advantage, and a KL."""

    updates_per_step: Positive = 1
    """Updates on each step's samples."""
    loss: Literal["clipped", "cispo"] = "clipped"
    """clipped: the clipped ratio (eq. 14). cispo: −min(ratio, `cispo_maximum`) A log π, which drops no token."""
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε of the clipped ratio."""
    clip_epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """DAPO's clip-higher: the ratio is clipped to 1 − ε and 1 + this. null: ε on both sides."""
    clip_delta: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: the largest ratio of a token with a negative advantage (3 is usual; TRL's `delta`). null: none."""
    cispo_maximum: Annotated[float, Field(gt=0)] = 5.0
    """The largest weight of a token with `loss: cispo`."""
    level: ClipLevel = "token"
    """What is clipped: the ratio of each token (eq. 14), of the sequence (eq. 17), or the geometric mean of the tokens'
    ratios (GSPO, with `aggregation: samples` and ε near 3e-4)."""
    aggregation: Aggregation = "tokens"
    """tokens: the mean over all tokens. sum_over_samples: eq. 14. samples: 1/length, as in the original
    GRPO."""
    scale_by_std: bool = False
    """Divide a group's advantages by the std of its rewards, as the original GRPO does."""
    kl: GrpoKlConfig = GrpoKlConfig()

    @property
    def smallest_group(self) -> int:
        return 2

    @property
    def resamples(self) -> int:
        return 0

    @model_validator(mode="after")
    def level_fits_the_aggregation(self) -> "GroupRelativeConfig":
        if self.level == "sequence" and self.aggregation != "sum_over_samples":
            raise ValueError("`level: sequence` is eq. 17, a sum over samples: add `aggregation: sum_over_samples`")
        if self.level == "geometric" and self.aggregation != "samples":
            raise ValueError("`level: geometric` is GSPO, a mean over samples: add `aggregation: samples`")
        return self

    @model_validator(mode="after")
    def clipping_has_an_effect(self) -> "GroupRelativeConfig":
        inert = CLIPPING if self.loss == "cispo" else ("cispo_maximum",)
        for key in inert:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"`{key}` has no effect with `loss: {self.loss}`")
        high = self.clip_epsilon_high or self.clip_epsilon
        if self.clip_delta is not None and self.clip_delta <= 1 + high:
            raise ValueError(f"`clip_delta` should be above {1 + high:g}, where the ratio is clipped anyway")
        return self


class GrpoConfig(GroupRelativeConfig):
    """GRPO as Dr. GRPO (`rlmt-grape` eq. 13-14), with a KL to the reference. Options restore the original GRPO."""

    description: ClassVar[str] = (
        "GRPO as Dr. GRPO: clipped ratio, group-relative advantage, KL to the reference (rlmt-grape eq. 13-14)."
    )
    card: ClassVar[str] = "GRPO: groups of samples, each compared with the mean of its group, with a clipped ratio."
    name: Literal["grpo"]
    resample: Annotated[int, Field(ge=0, le=100)] = 0
    """Dynamic sampling: how many times a step may sample more prompts to replace groups whose rewards are all equal."""

    @property
    def resamples(self) -> int:
        return self.resample


class MixConfig(Strict):
    """Shares of a question's responses by origin, normalized to a sum of one. With nothing to revise yet, responses are
    fresh."""

    fresh: NotNegative = 0.0
    """Sampled from the category's generation prompt."""
    revised: NotNegative = 0.0
    """Revisions of the last iteration's responses, given the feedback on them."""
    demonstrated: NotNegative = 0.0
    """The dataset's `answer`, at most once per group."""
    by: Literal["probability", "proportion"] = "probability"
    """probability: every sample draws its origin. proportion: every group has the same counts."""

    @model_validator(mode="after")
    def some_are_sampled(self) -> "MixConfig":
        if self.fresh + self.revised == 0:
            raise ValueError(
                "`fresh` or `revised` must be above 0: a group with only the dataset's answer has one text"
            )
        return self


class GrapeConfig(GroupRelativeConfig):
    """GRAPE (`rlmt-grape` §6.1): GRPO on a rubric's reward, with revised responses."""

    description: ClassVar[str] = "GRPO on a rubric's reward, with revised responses in the groups (rlmt-grape §6.1)."
    card: ClassVar[str] = (
        "GRAPE: groups of answers, some of them revised, scored by a rubric and compared within their group."
    )
    name: Literal["grape"]
    mix: MixConfig = MixConfig(fresh=0.5, revised=0.5)
    trained_under: Literal["question", "generation_prompt"] = "question"
    """The prompt of all responses in training, whichever prompt they were sampled from."""
    correction: Literal["none", "truncated"] = "none"
    """truncated: weight each token by min(1, π₀(token | training prompt) / π₀(token | sampling prompt)). none: all
    weights are 1 (the paper)."""

    @property
    def needs_rubric(self) -> bool:
        return True

    @property
    def shows_answers(self) -> bool:
        return self.mix.demonstrated > 0

    @model_validator(mode="after")
    def correction_has_an_effect(self) -> "GrapeConfig":
        if self.correction == "none":
            return self
        if self.level != "token":
            raise ValueError("`correction: truncated` weights tokens: set `level: token`")
        if self.trained_under == "generation_prompt" and self.mix.revised == 0:
            raise ValueError(
                "`correction: truncated` has no effect: the training prompt of every response is its sampling prompt"
            )
        return self
