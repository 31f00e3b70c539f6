"""The methods that compare the samples of a group: GRPO, and GRAPE with its mix of responses."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.kl import GrpoKlConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import NotNegative, Positive, Strict


class GroupRelativeConfig(MethodOptions):
    """What GRPO and GRAPE have in common: the clipped ratio with an advantage over a group, and a KL."""

    updates_per_step: Positive = 1
    """Updates on each step's samples."""
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε of the clipped ratio."""
    aggregation: Aggregation = "tokens"
    """tokens: the mean over all tokens. sum_over_samples: eq. 14. samples: the first GRPO's 1/length."""
    scale_by_std: bool = False
    """Divide a group's advantages by the std of its rewards, as the first GRPO does."""
    kl: GrpoKlConfig = GrpoKlConfig()

    @property
    def smallest_group(self) -> int:
        return 2

    @property
    def clip_level(self) -> Literal["token", "sequence"]:
        """What a ratio is of: a token, or a whole text."""
        return "token"

    @property
    def resamples(self) -> int:
        return 0


class GrpoConfig(GroupRelativeConfig):
    """GRPO as Dr. GRPO (`rlmt-grape` eq. 13-14), with a KL to the reference. The first GRPO's biases go by name."""

    description: ClassVar[str] = (
        "GRPO as Dr. GRPO: clipped ratio, group-relative advantage, KL to the reference (rlmt-grape eq. 13-14)."
    )
    card: ClassVar[str] = "GRPO: groups of samples, each compared with the mean of its group, with a clipped ratio."
    name: Literal["grpo"]
    resample: Annotated[int, Field(ge=0, le=100)] = 0
    """Dynamic sampling: how many times a step may draw more prompts, to put in the place of groups that teach nothing
    because their rewards do not differ."""

    @property
    def resamples(self) -> int:
        return self.resample


class MixConfig(Strict):
    """Where a question's responses come from; brought to a sum of one. What has nothing to revise yet is fresh."""

    fresh: NotNegative = 0.0
    """Drawn under the category's generation prompt."""
    revised: NotNegative = 0.0
    """Of the last iteration's responses, with what was said of them."""
    demonstrated: NotNegative = 0.0
    """The dataset's `answer`, once in a group at most."""
    by: Literal["probability", "proportion"] = "probability"
    """probability: each sample draws its own. proportion: the same number in every group."""

    @model_validator(mode="after")
    def something_is_drawn(self) -> "MixConfig":
        if self.fresh + self.revised == 0:
            raise ValueError("`fresh` or `revised` must be above 0: a group of demonstrations alone has one text")
        return self


class GrapeConfig(GroupRelativeConfig):
    """GRAPE (`rlmt-grape` §6.1): GRPO on a rubric's reward, with responses that are revised."""

    description: ClassVar[str] = "GRPO on a rubric's reward, with revised responses in the groups (rlmt-grape §6.1)."
    card: ClassVar[str] = (
        "GRAPE: groups of answers, some of them revised, scored by a rubric and compared within their group."
    )
    name: Literal["grape"]
    level: Literal["token", "sequence"] = "token"
    """What is clipped: the ratio of each token (eq. 14), or that of the whole text (eq. 17)."""
    mix: MixConfig = MixConfig(fresh=0.5, revised=0.5)
    trained_under: Literal["question", "generation_prompt"] = "question"
    """The text that a response is trained behind, wherever it was drawn."""
    correction: Literal["none", "truncated"] = "none"
    """truncated: a token that the trained text makes less likely than the text it was drawn under counts for less, by
    the ratio of the two probabilities. none: all count alike (the paper)."""

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
    def a_text_has_one_ratio(self) -> "GrapeConfig":
        if self.level == "sequence" and self.aggregation != "sum_over_samples":
            raise ValueError("`level: sequence` is eq. 17, a sum over samples: add `aggregation: sum_over_samples`")
        return self

    @model_validator(mode="after")
    def a_correction_corrects(self) -> "GrapeConfig":
        if self.correction == "none":
            return self
        if self.level == "sequence":
            raise ValueError("`correction: truncated` weighs tokens: it goes with `level: token`")
        if self.trained_under == "generation_prompt" and self.mix.revised == 0:
            raise ValueError(
                "`correction: truncated` does nothing: all is trained under the text that it is drawn under"
            )
        return self
