"""The config of a run, and checks between its sections. `recipe.py` reads recipes.

Nothing here imports torch, so that an invalid recipe is refused immediately.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from vigneron.config.critics import TokenCriticConfig
from vigneron.config.curricula import (
    CurriculumConfig,
    CurriculumOptions,
    LevelCurriculumConfig,
    LossCurriculumConfig,
    SuccessCurriculumConfig,
)
from vigneron.config.custom import USER_CODE, SlotOptions, with_user_options
from vigneron.config.group import GrapeConfig, GroupRelativeConfig, GrpoConfig
from vigneron.config.judges import EndpointJudgeConfig, JudgeConfig, LocalJudgeConfig, PythonJudgeConfig
from vigneron.config.kl import AdaptiveKlConfig, GrpoKlConfig, KlConfig, PenaltyConfig, RewardKlConfig
from vigneron.config.methods import (
    ActorCriticConfig,
    ConstraintConfig,
    DpoConfig,
    FlowerConfig,
    KtoConfig,
    MethodConfig,
    PpoConfig,
    ReinforceConfig,
    RejectionSamplingConfig,
    SftConfig,
    SppoConfig,
    TrpoConfig,
)
from vigneron.config.offline import AStarPoConfig, OreoConfig, ToprConfig
from vigneron.config.options import MethodOptions
from vigneron.config.parts import (
    CHECKER_NAMES,
    DataConfig,
    EndpointParentConfig,
    LocalParentConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    ParentConfig,
    SamplingConfig,
)
from vigneron.config.rewards import (
    BinaryRewardConfig,
    CombinedRewardConfig,
    GuardsConfig,
    ModelRewardConfig,
    OverlongConfig,
    PreferenceRewardConfig,
    ProcessRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RubricRewardConfig,
    SemanticRewardConfig,
    embeds_here,
    is_api_embedder,
    judges_here,
)
from vigneron.config.scale import (
    HereSamplingConfig,
    PoolConfig,
    RaySamplingConfig,
    ScaleConfig,
    VllmSamplingConfig,
)
from vigneron.config.scorers import PreferenceModelConfig, ProcessModelConfig, RewardModelConfig, ScoreModelConfig
from vigneron.config.values import Positive, Strict, plain_url

__all__ = [
    "CHECKER_NAMES",
    "DEFAULT_MICROBATCH_TOKENS",
    "USER_CODE",
    "AStarPoConfig",
    "ActorCriticConfig",
    "AdaptiveKlConfig",
    "BinaryRewardConfig",
    "CombinedRewardConfig",
    "Config",
    "ConstraintConfig",
    "CurriculumConfig",
    "CurriculumOptions",
    "DataConfig",
    "DpoConfig",
    "EndpointJudgeConfig",
    "EndpointParentConfig",
    "FlowerConfig",
    "GrapeConfig",
    "GroupRelativeConfig",
    "GrpoConfig",
    "GrpoKlConfig",
    "GuardsConfig",
    "HereSamplingConfig",
    "JudgeConfig",
    "KlConfig",
    "KtoConfig",
    "LevelCurriculumConfig",
    "LocalJudgeConfig",
    "LocalParentConfig",
    "LoraConfig",
    "LossCurriculumConfig",
    "MethodConfig",
    "MethodOptions",
    "ModelConfig",
    "ModelRewardConfig",
    "OptimizerConfig",
    "OreoConfig",
    "OverlongConfig",
    "ParentConfig",
    "PenaltyConfig",
    "PoolConfig",
    "PpoConfig",
    "PreferenceModelConfig",
    "PreferenceRewardConfig",
    "ProcessModelConfig",
    "ProcessRewardConfig",
    "PythonJudgeConfig",
    "PythonRewardConfig",
    "RaySamplingConfig",
    "ReinforceConfig",
    "RejectionSamplingConfig",
    "RewardConfig",
    "RewardKlConfig",
    "RewardModelConfig",
    "RubricRewardConfig",
    "SamplingConfig",
    "ScaleConfig",
    "ScoreModelConfig",
    "SemanticRewardConfig",
    "SftConfig",
    "SlotOptions",
    "SppoConfig",
    "Strict",
    "SuccessCurriculumConfig",
    "TokenCriticConfig",
    "ToprConfig",
    "TrpoConfig",
    "VllmSamplingConfig",
    "is_api_embedder",
    "plain_url",
]

DEFAULT_MICROBATCH_TOKENS = 4096
METHOD = TypeAdapter[MethodOptions](MethodConfig)
Slot = Annotated[SlotOptions, with_user_options(SlotOptions)]


class Config(Strict):
    """A whole recipe."""

    recipe: str = "custom"
    """The name of the recipe; runs are named after it."""
    about: str = ""
    """One line for `vigneron recipes`."""
    method: SerializeAsAny[MethodConfig]
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parent: ParentConfig | None = None
    """The model that answers the prompts. null: the dataset's column `answer`."""
    reward: RewardConfig
    """Not needed by methods that read given texts, whose held-out completions are then scored by `binary`, nor by those
    that read pairs."""
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Keys every random draw: the same seed gives the same run."""
    steps: Positive = 100
    """Turns of the loop: sample, reward, update."""
    prompts_per_step: Positive = 16
    """Prompts (or demonstrations, or pairs) of a step."""
    group_size: Positive = 1
    """Samples of each prompt; TRL calls it num_generations."""
    max_new_tokens: Positive = 16
    """The longest completion, in tokens."""
    microbatch_tokens: Positive | Literal["auto"] = "auto"
    """Tokens in one forward and backward pass: bounds memory, changes only rounding. auto: chosen from the memory
    that is free at the start, and kept in the run's config."""
    eval_every: Annotated[int, Field(ge=0)] = 10
    """Steps between greedy evaluations on the held-out part, which also come first and last; 0: never."""
    save_every: Annotated[int, Field(ge=0)] = 50
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    keep_last: Positive = 2
    """How many of the newest checkpoints are kept."""
    keep_best: str | None = None
    """A held-out metric such as `eval/reward`: the best checkpoint by it is kept too."""
    skip_nonfinite: Annotated[int, Field(ge=0)] = 0
    """How many steps may be skipped because a loss, gradient or reward is NaN or infinite; one more stops the run."""
    successive_kl_every: Annotated[int, Field(ge=0)] = 1
    """Steps between measurements of KL(π₀ ‖ π₁) after the updates, each a forward pass; 0: never."""
    rollout: SerializeAsAny[Slot] | None = None
    """Where samples come from, if not from the method's own rollout: `name: "module:function"`, and its options."""
    curriculum: SerializeAsAny[CurriculumConfig] | None = None
    """Which rows a step works on, if not shuffled epochs: by level, loss or success, or `name: "module:function"`."""
    scale: ScaleConfig = ScaleConfig()
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(default_factory=list)
    """Trackers that receive every step's metrics too."""

    @property
    def resolved_microbatch_tokens(self) -> int:
        """`microbatch_tokens`, with the default for `auto`."""
        return DEFAULT_MICROBATCH_TOKENS if self.microbatch_tokens == "auto" else self.microbatch_tokens

    @model_validator(mode="after")
    def what_is_adapted_to_is_measured(self) -> "Config":
        for kl in (getattr(self.method, key, None) for key in ("kl", "penalty")):
            if not isinstance(kl, KlConfig | PenaltyConfig):
                continue
            if not (kl.adaptive and kl.against == "previous" and self.successive_kl_every != 1):
                continue
            raise ValueError("an adaptive KL against the previous policy needs `successive_kl_every: 1`")
        return self

    @model_validator(mode="after")
    def the_best_can_be_known(self) -> "Config":
        if self.keep_best is None:
            return self
        if not self.keep_best.startswith("eval/"):
            raise ValueError("`keep_best` is the name of a held-out metric, such as eval/reward")
        if not self.eval_every:
            raise ValueError("`keep_best` compares held-out metrics: set `eval_every`")
        if not self.save_every or self.save_every % self.eval_every:
            raise ValueError(
                "`keep_best` compares checkpoints that were evaluated: set `save_every` to a multiple of `eval_every`"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def given_texts_need_no_reward(cls, given: Any, info: ValidationInfo) -> Any:
        """Without one, held-out completions of a method that reads demonstrations are scored by the checker."""
        if not isinstance(given, Mapping):
            return given
        try:
            method = METHOD.validate_python(given.get("method"), context=info.context)
        except ValidationError:  # reported where the method is parsed; errors that follow from it are not
            method_known = isinstance(given.get("method"), Mapping) and "name" in given["method"]
            return {"reward": {"kind": "binary"}, **given} if method_known else given
        if not method.imported:
            return {"reward": {"kind": "binary"}, **given}
        if method.reads == "pairs" and given.get("reward") is not None:
            raise ValueError(
                f"`reward` has no effect with {_named(method)}, which trains on preference pairs: leave it out"
            )
        needs_none = method.reads != "prompts" and given.get("reward") is None
        return {**given, "reward": {"kind": "binary"}} if needs_none else given

    @model_validator(mode="after")
    def given_texts_are_not_sampled(self) -> "Config":
        inert: dict[str, Any] = {}
        if self.method.reads != "prompts":
            # Held-out completions are sampled all the same, unless the method reads pairs or trains a scorer.
            evaluates = self.method.reads != "pairs" and self.method.trains == "policy"
            inert = {"group_size": 1, "sampling": SamplingConfig(stop=self.sampling.stop if evaluates else [])}
        if self.method.reads == "pairs":
            inert |= {"max_new_tokens": 16, "parent": None}
        if self.method.reads == "recorded":
            inert |= {"parent": None}
        for key, default in inert.items():
            if getattr(self, key) != default:
                raise ValueError(
                    f"`{key}` has no effect with {_named(self.method)}, which samples nothing: leave it out"
                )
        return self

    @model_validator(mode="after")
    def a_scorer_is_trained_whole(self) -> "Config":
        if self.method.trains == "scorer" and self.model.lora is not None:
            raise ValueError(f"{_named(self.method)} trains the whole model: leave out `model.lora`")
        return self

    @model_validator(mode="after")
    def a_group_can_be_compared(self) -> "Config":
        compared, reward = self.reward.smallest_group, f"`reward: {self.reward.kind}`"
        if self.method.reads != "prompts" and compared > 1:
            raise ValueError(f"{reward} compares samples, but {_named(self.method)} samples nothing: use another")
        least = max(self.method.smallest_group, compared)
        if self.group_size < least:
            who = _named(self.method) if self.method.smallest_group == least else reward
            raise ValueError(
                f"{who} compares the samples of a prompt with each other: "
                f"set `group_size` to {least} or more (8 is usual)"
            )
        return self

    @model_validator(mode="after")
    def rewards_of_prompts_can_be_compared(self) -> "Config":
        if self.reward.smallest_group == 1:
            return self
        curriculum, who = self.curriculum, None
        if isinstance(curriculum, LossCurriculumConfig):
            who = "`curriculum.by: loss`"
        if isinstance(curriculum, SuccessCurriculumConfig) and curriculum.measure == "reward":
            who = "`curriculum.by: success`"
        if self.method.compares_prompts:
            who = _named(self.method)
        if who is not None:
            raise ValueError(
                f"{who} compares the rewards of prompts, but `reward: {self.reward.kind}` compares the samples of one "
                "prompt: use a reward that scores each sample by itself"
            )
        return self

    @model_validator(mode="after")
    def step_rewards_are_used(self) -> "Config":
        at_steps = [part for part in self.reward.parts if getattr(part, "rewards_at", None) == "steps"]
        if at_steps and self.reward not in at_steps:
            raise ValueError("`rewards_at: steps` has no effect in a combined reward: leave it out")
        if at_steps and self.method.imported and not self.method.takes_step_rewards:
            raise ValueError(
                f"`reward.rewards_at: steps` has no effect with {_named(self.method)}: it needs `method: ppo` with "
                "`advantage: gae`"
            )
        return self

    @model_validator(mode="after")
    def a_step_has_enough_rows(self) -> "Config":
        if self.prompts_per_step < self.method.smallest_step:
            raise ValueError(f"{_named(self.method)} needs `prompts_per_step` of {self.method.smallest_step} or more")
        return self

    @model_validator(mode="after")
    def the_overlong_penalty_has_an_effect(self) -> "Config":
        overlong = self.reward.overlong
        if overlong is not None and self.method.reads != "prompts":
            raise ValueError(f"`reward.overlong` has no effect with {_named(self.method)}, which samples nothing")
        if overlong is not None and overlong.buffer > self.max_new_tokens:
            raise ValueError(f"`reward.overlong.buffer` is above `max_new_tokens` ({self.max_new_tokens})")
        return self

    @model_validator(mode="after")
    def pools_have_work(self) -> "Config":
        scale, reward = self.scale, self.reward
        if scale.sampling.kind != "here" and self.method.reads == "pairs":
            raise ValueError(
                f"`scale.sampling` has no effect with {_named(self.method)}, which samples nothing: leave it out"
            )
        for key in ("correction_limit", "correction_mode", "correction_level"):
            inert = self.method.weighs_samples or not self.method.has_advantages
            if inert and getattr(scale, key) != ScaleConfig.model_fields[key].default:
                why = "weighs its samples itself" if self.method.weighs_samples else "has no advantages to weight"
                raise ValueError(f"`scale.{key}` has no effect with {_named(self.method)}, which {why}: leave it out")
        if self.sampling.prompt is not None and (scale.staleness or scale.sampling.kind == "vllm"):
            raise ValueError(
                "`sampling.prompt` gives log-probs after another prompt, so nothing corrects for `scale.staleness` or "
                "vLLM: leave it out, or sample with `scale.sampling.kind: here` or `ray` and `staleness: 0`"
            )
        if scale.embedding is not None and not embeds_here(reward):
            raise ValueError("`scale.embedding` has no effect: this reward uses no local embedder: leave it out")
        if scale.judging is not None and not judges_here(reward):
            raise ValueError("`scale.judging` has no effect: this reward uses no local judge: leave it out")
        return self

    @model_validator(mode="after")
    def responses_are_drawn_as_a_rubric_says(self) -> "Config":
        if self.method.needs_rubric and self.reward.kind != "rubric":
            raise ValueError(f"{_named(self.method)} uses a rubric's prompts and feedback: set `reward.kind: rubric`")
        if self.method.needs_rubric and self.sampling.prompt is not None:
            raise ValueError(
                f"`sampling.prompt` has no effect with {_named(self.method)}, whose rubric has prompts: leave it out"
            )
        if self.method.needs_rubric and self.rollout is not None:
            raise ValueError(
                f"`rollout` has no effect with {_named(self.method)}, which has its own rollout: leave it out"
            )
        return self

    @model_validator(mode="after")
    def a_curriculum_can_measure(self) -> "Config":
        curriculum = self.curriculum
        if isinstance(curriculum, SuccessCurriculumConfig) and self.method.imported and self.method.reads != "prompts":
            raise ValueError(
                f"`curriculum.by: success` needs rewards, but {_named(self.method)} samples nothing: use `by: loss` or "
                "`by: level`"
            )
        replaces = getattr(self.method, "resamples", 0) > 0
        if isinstance(curriculum, SuccessCurriculumConfig) and curriculum.measure == "verdict" and replaces:
            raise ValueError(
                "`curriculum.measure: verdict` has no verdicts of the groups that `method.resample` replaces: use "
                "`measure: reward`"
            )
        if (
            isinstance(curriculum, LossCurriculumConfig)
            and self.method.reads != "prompts"
            and not self.method.loss_falls
        ):
            raise ValueError(
                f"`curriculum.by: loss` has no order with {_named(self.method)}, whose loss is lowest for texts with "
                "bad rewards: use `by: level`"
            )
        if isinstance(curriculum, LossCurriculumConfig) and self.scale.staleness:
            raise ValueError(
                "`curriculum.by: loss` measures all rows with the current weights: set `scale.staleness` to 0"
            )
        return self

    @model_validator(mode="after")
    def actor_lr_has_an_effect(self) -> "Config":
        if not self.method.steps_by_gradient and "actor_lr" in self.optimizer.model_fields_set:
            raise ValueError("`optimizer.actor_lr` has no effect with `form: constraint`, which has no learning rate")
        return self

    @model_validator(mode="after")
    def a_trust_region_needs_whole_weights(self) -> "Config":
        if not self.method.steps_by_gradient and self.scale.shard > 1:
            raise ValueError(
                "`form: constraint` differentiates twice, which FSDP2 cannot: set `scale.shard` to 1 (every rank has "
                "its own copy of the weights), or use `form: penalty`"
            )
        return self

    @model_validator(mode="after")
    def critic_lr_has_an_effect(self) -> "Config":
        if self.method.imported and not self.method.has_critic and "critic_lr" in self.optimizer.model_fields_set:
            raise ValueError(f"`optimizer.critic_lr` has no effect with {_named(self.method)}: it has no critic")
        return self

    @model_serializer(mode="wrap")
    def without_inert_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        written = dump(self)
        if not self.method.imported:
            return written
        if self.method.reads == "pairs":
            written.pop("reward", None)
        if not self.method.has_critic:
            written.get("optimizer", {}).pop("critic_lr", None)
        if not self.method.steps_by_gradient:
            written.get("optimizer", {}).pop("actor_lr", None)
        return written


def _named(method: MethodOptions) -> str:
    return f"`method: {getattr(method, 'name', '')}`"
