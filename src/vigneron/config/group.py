"""Group-relative methods: GRPO, and GRAPE with its mix of responses."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from vigneron.config.kl import GrapeKlConfig, GrpoKlConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import NotNegative, Positive, Share, Strict, as_before

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
    def uses_reference(self) -> bool:
        return self.kl.coefficient > 0

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
    """Shares of a question's responses by origin, normalized to a sum of one; one that is left out is 0, if any is
    given. With nothing to revise yet, responses are fresh."""

    fresh: NotNegative = 0.0
    """Sampled from the category's generation prompt."""
    revised: NotNegative = 0.0
    """Revisions of the last iteration's responses, given the feedback on them."""
    demonstrated: NotNegative = 0.0
    """The dataset's `answer`, at most once per group."""
    by: Literal["probability", "proportion"] = "probability"
    """probability: every sample draws its origin. proportion: every group has the same counts."""

    @property
    def has_one_origin(self) -> bool:
        return [self.fresh, self.revised, self.demonstrated].count(0) == 2

    @model_validator(mode="before")
    @classmethod
    def half_and_half(cls, given: Any) -> Any:
        """Where no share is given."""
        shares = {"fresh", "revised", "demonstrated"}
        no_shares = isinstance(given, Mapping) and shares.isdisjoint(given)
        return {"fresh": 0.5, "revised": 0.5, **given} if no_shares else given

    @model_validator(mode="after")
    def some_are_sampled(self) -> "MixConfig":
        if self.fresh + self.revised == 0:
            raise ValueError(
                "give `fresh` or `revised` a share above 0 (a share that is left out is 0): a group with only the "
                "dataset's answer has one text"
            )
        return self


class ScaffoldConfig(Strict):
    """RuscaRL (Zhou et al. 2025): fresh answer i of a group of G sees a share (G−1−i)/(G−1) · 1/(1 + e^{a(x − x₀)}) of
    the help, x being the progress of training from 0 to 1; then it answers the bare question."""

    shows: Literal["items", "generation_prompt"] = "items"
    """items: this share of the category's items, rounded, chosen at random, in place of the `generate` prompt.
    generation_prompt: that prompt, where the share is at least one half."""
    half_at: Share = 0.2
    """x₀: the progress at which half of the help is left."""
    steepness: Annotated[float, Field(gt=0)] = 125.0
    """a: how fast it fades there."""


class SelfDistillationConfig(Strict):
    """On policy: all answers are sampled for the bare question, and the policy that has seen more scores their tokens
    (SDPO, Hübotter et al. 2026): A = R − mean + λ · clip(log π₀(token | seen, question) − log π₀(token | question))."""

    sees: Literal["feedback", "best", "generation_prompt"] = "feedback"
    """What it has seen. feedback: the feedback on the same answer, without its text. best: the best answer of the group
    and the feedback on it; answers with the best reward get no signal. generation_prompt: the category's prompt."""
    coefficient: Annotated[float, Field(gt=0)] = 1.0
    """λ, the weight of a nat beside the reward."""
    limit: Annotated[float, Field(gt=0)] = 1.0
    """A token's difference is clipped to ± this many nats."""


class GrapeConfig(GroupRelativeConfig):
    """GRAPE (`rlmt-grape` §6.1): GRPO on a rubric's reward, with revised responses."""

    description: ClassVar[str] = "GRPO on a rubric's reward, with revised responses in the groups (rlmt-grape §6.1)."
    card: ClassVar[str] = (
        "GRAPE: groups of answers, some of them revised, scored by a rubric and compared within their group."
    )
    name: Literal["grape"]
    kl: GrapeKlConfig = GrapeKlConfig()
    mix: MixConfig = MixConfig()
    trained_under: Literal["question", "generation_prompt"] = "question"
    """The prompt of all responses in training, whichever prompt they were sampled from."""
    correction: Literal["none", "truncated", "topr"] = "topr"
    """Weights of sampled responses whose training prompt is not their sampling prompt. none: 1 (the paper). truncated:
    min(1, π₀(token | training prompt) / π₀(token | sampling prompt)). topr: 1 where the advantage is not negative, else
    min(1, that ratio of the whole response) (TOPR). Unset: none where it has no effect, and with other levels than
    token."""
    baseline: Literal["group", "origin"] = "origin"
    """What a reward is compared with. group: the mean of its group (the paper). origin: of the group's responses of the
    same origin; one alone has advantage 0, and the dataset's answer is compared with the group. Unset: group where all
    responses have one origin, or a group has fewer than two of one."""
    revise: Literal["all", "failures"] = "all"
    """failures: only questions whose last group failed get revisions, the others fresh responses instead."""
    fails_by: Literal["reward", "check"] = "reward"
    """With `revise: failures`, a group has failed if no fresh response had a reward of `fails_below`, or if the checker
    accepted none."""
    fails_below: float = 0.5
    """The reward that a fresh response must reach."""
    demonstration_gamma: Annotated[float, Field(gt=0)] | None = None
    """γ of LUFFY (0.1 is usual): the loss of the dataset's answers is −A π/(π + γ). null: the ratio,
    as of the others."""
    scaffold: ScaffoldConfig | None = None
    self_distillation: SelfDistillationConfig | None = None

    @property
    def needs_rubric(self) -> bool:
        return True

    @property
    def smallest_group_by_origin(self) -> int:
        """A group of this size has two sampled responses of each origin, on average where origins are drawn."""
        mix = self.mix
        rarest = min(share for share in (mix.fresh, mix.revised) if share)
        return math.ceil(2 * (mix.fresh + mix.revised + mix.demonstrated) / rarest - 1e-9)

    @property
    def shows_answers(self) -> bool:
        return self.mix.demonstrated > 0

    @property
    def shows_items(self) -> bool:
        return self.scaffold is not None and self.scaffold.shows == "items"

    @model_validator(mode="before")
    @classmethod
    def without_defaults_that_have_no_effect(cls, given: Any, info: ValidationInfo) -> Any:
        """Fill in what is unset: on policy all answers are fresh, and what would have no effect is left out. Runs of
        earlier versions had the paper's form."""
        given = as_before(given, info, correction="none", baseline="group")
        if not isinstance(given, Mapping):
            return given
        on_policy = given.get("self_distillation") is not None
        unset: dict[str, Any] = {"mix": {"fresh": 1.0}} if on_policy else {}
        try:
            mix = MixConfig.model_validate({**unset, **given}.get("mix", cls.model_fields["mix"].default))
        except ValidationError:
            return {**unset, **given}  # an error of `mix`
        as_sampled = given.get("trained_under") == "generation_prompt" and mix.revised == 0
        if on_policy or as_sampled or given.get("level", "token") != "token":
            unset["correction"] = "none"
        if mix.has_one_origin:
            unset["baseline"] = "group"
        return {**unset, **given}

    @model_validator(mode="after")
    def correction_has_an_effect(self) -> "GrapeConfig":
        if self.correction == "none":
            return self
        if self.level != "token":
            raise ValueError(f"`correction: {self.correction}` weights tokens: set `level: token`")
        if self.trained_under == "generation_prompt" and self.mix.revised == 0:
            raise ValueError(
                f"`correction: {self.correction}` has no effect: the training prompt of every response is its sampling "
                "prompt"
            )
        return self

    @model_validator(mode="after")
    def origins_have_an_effect(self) -> "GrapeConfig":
        mix = self.mix
        if self.baseline == "origin" and mix.has_one_origin:
            raise ValueError("`baseline: origin` has no effect: all responses of `mix` have one origin")
        if self.revise == "failures" and mix.revised == 0:
            raise ValueError("`revise: failures` has no effect: `mix` has no revised responses")
        for key in ("fails_by", "fails_below"):
            inert = self.revise == "all" or (key == "fails_below" and self.fails_by == "check")
            if inert and getattr(self, key) != type(self).model_fields[key].default:
                why = "revise: all" if self.revise == "all" else "fails_by: check"
                raise ValueError(f"`{key}` has no effect with `{why}`")
        if self.demonstration_gamma is not None and mix.demonstrated == 0:
            raise ValueError("`demonstration_gamma` has no effect: `mix` has no demonstrated responses")
        if self.demonstration_gamma is not None and self.level != "token":
            raise ValueError("`demonstration_gamma` weights tokens: set `level: token`")
        return self

    @model_validator(mode="after")
    def help_has_an_effect(self) -> "GrapeConfig":
        if self.scaffold is not None and self.mix.fresh == 0:
            raise ValueError("`scaffold` has no effect: `mix` has no fresh responses")
        if self.scaffold is not None and self.trained_under != "question":
            raise ValueError("`scaffold` fades until the bare question is left: set `trained_under: question`")
        if self.self_distillation is None:
            return self
        if self.mix.revised + self.mix.demonstrated > 0:
            raise ValueError("`self_distillation` samples every response for the bare question: leave out `mix`")
        for key, inert in (("trained_under", "question"), ("correction", "none"), ("scaffold", None)):
            if getattr(self, key) != inert:
                raise ValueError(
                    f"`{key}` has no effect with `self_distillation`, whose responses are sampled on policy"
                )
        if self.level != "token":
            raise ValueError("`self_distillation` has an advantage for each token: set `level: token`")
        return self
