"""Group-relative methods: GRPO, and GRAPE with its mix of responses."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.kl import GrpoKlConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import NotNegative, Positive, Strict


class GroupRelativeConfig(MethodOptions):
    """Options of GRPO and GRAPE: the clipped ratio with a group-relative advantage, and a KL."""

    updates_per_step: Positive = 1
    """Updates on each step's samples."""
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε of the clipped ratio."""
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
    def clip_level(self) -> Literal["token", "sequence"]:
        """Whether the ratio is computed per token or per sequence."""
        return "token"

    @property
    def resamples(self) -> int:
        return 0


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
    level: Literal["token", "sequence"] = "token"
    """What is clipped: the ratio of each token (eq. 14), or of the sequence (eq. 17)."""
    mix: MixConfig = MixConfig(fresh=0.5, revised=0.5)
    trained_under: Literal["question", "generation_prompt"] = "question"
    """The prompt of all responses in training, whichever prompt they were sampled from."""
    correction: Literal["none", "truncated"] = "none"
    """truncated: weight each token by min(1, π₀(token | training prompt) / π₀(token | sampling prompt)). none: all
    weights are 1 (the paper)."""

    @property
    def clip_level(self) -> Literal["token", "sequence"]:
        return self.level

    @property
    def needs_rubric(self) -> bool:
        return True

    @property
    def shows_answers(self) -> bool:
        return self.mix.demonstrated > 0

    @model_validator(mode="after")
    def sequence_level_sums_samples(self) -> "GrapeConfig":
        if self.level == "sequence" and self.aggregation != "sum_over_samples":
            raise ValueError("`level: sequence` is eq. 17, a sum over samples: add `aggregation: sum_over_samples`")
        return self

    @model_validator(mode="after")
    def correction_has_an_effect(self) -> "GrapeConfig":
        if self.correction == "none":
            return self
        if self.level == "sequence":
            raise ValueError("`correction: truncated` weights tokens: set `level: token`")
        if self.trained_under == "generation_prompt" and self.mix.revised == 0:
            raise ValueError(
                "`correction: truncated` has no effect: the training prompt of every response is its sampling prompt"
            )
        return self
