"""The run's config: what a recipe may say, and what contradicts itself. Recipes are read in `recipe.py`.

Light on purpose: no torch here, so that a bad recipe is refused at once.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.methods import (
    ActorCriticConfig,
    AdaptiveKlConfig,
    ConstraintConfig,
    GrpoConfig,
    GrpoKlConfig,
    KlConfig,
    MethodConfig,
    MethodOptions,
    PenaltyConfig,
    PpoConfig,
    ReinforceConfig,
    RewardKlConfig,
    SftConfig,
    TokenCriticConfig,
    TrpoConfig,
)
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
    GuardsConfig,
    PythonRewardConfig,
    RewardConfig,
    SemanticRewardConfig,
    is_api_embedder,
)
from vigneron.config.values import Positive, Strict, plain_url

__all__ = [
    "CHECKER_NAMES",
    "DEFAULT_MICROBATCH_TOKENS",
    "ActorCriticConfig",
    "AdaptiveKlConfig",
    "BinaryRewardConfig",
    "Config",
    "ConstraintConfig",
    "DataConfig",
    "EndpointParentConfig",
    "GrpoConfig",
    "GrpoKlConfig",
    "GuardsConfig",
    "KlConfig",
    "LocalParentConfig",
    "LoraConfig",
    "MethodConfig",
    "MethodOptions",
    "ModelConfig",
    "OptimizerConfig",
    "ParentConfig",
    "PenaltyConfig",
    "PpoConfig",
    "PythonRewardConfig",
    "ReinforceConfig",
    "RewardConfig",
    "RewardKlConfig",
    "SamplingConfig",
    "SemanticRewardConfig",
    "SftConfig",
    "Strict",
    "TokenCriticConfig",
    "TrpoConfig",
    "is_api_embedder",
    "plain_url",
]

DEFAULT_MICROBATCH_TOKENS = 4096


class Config(Strict):
    """A recipe, whole."""

    recipe: str = "custom"
    about: str = ""
    method: MethodConfig
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parent: ParentConfig | None = None
    """Who answers the prompts. None: the column `answer`, recorded before."""
    reward: RewardConfig
    """`sft` needs none: then held-out completions are scored by `binary`."""
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Positive = 100
    prompts_per_step: Positive = 16
    group_size: Positive = 1
    max_new_tokens: Positive = 16
    microbatch_tokens: Positive | Literal["auto"] = "auto"
    """Tokens that pass through the model together: bounds memory, and changes nothing but rounding. auto: found from
    the memory that is free when the run starts, and kept in the run's config."""
    eval_every: Annotated[int, Field(ge=0)] = 10
    """Greedy evaluation on the held-out part every so many steps, at the start and at the end; 0: never."""
    save_every: Annotated[int, Field(ge=0)] = 50
    """A checkpoint every so many steps, and at the end; 0: at the end only."""
    keep_last: Positive = 2
    successive_kl_every: Annotated[int, Field(ge=0)] = 1
    """How often KL(π₀ ‖ π₁) after a step's updates is measured (it costs a pass); 0: never."""

    @property
    def tokens_at_once(self) -> int:
        return DEFAULT_MICROBATCH_TOKENS if self.microbatch_tokens == "auto" else self.microbatch_tokens

    @model_validator(mode="after")
    def what_is_adapted_to_is_measured(self) -> "Config":
        for kl in (getattr(self.method, key, None) for key in ("kl", "penalty")):
            if not (kl and kl.adaptive and kl.against == "previous" and self.successive_kl_every != 1):
                continue
            raise ValueError("an adaptive KL against the previous policy needs `successive_kl_every: 1`")
        return self

    @model_validator(mode="before")
    @classmethod
    def demonstrations_need_no_reward(cls, given: Any) -> Any:
        """Without one, the held-out completions of `sft` are scored by the checker."""
        if not isinstance(given, Mapping) or given.get("reward") is not None:
            return given
        method = given.get("method")
        name = method.get("name") if isinstance(method, Mapping) else getattr(method, "name", None)
        return {**given, "reward": {"kind": "binary"}} if name == "sft" else given

    @model_validator(mode="after")
    def answers_are_not_sampled(self) -> "Config":
        if self.method.reads != "prompts":
            for key, default in (("group_size", 1), ("sampling", SamplingConfig())):
                if getattr(self, key) != default:
                    method = self.method.name
                    raise ValueError(
                        f"`{key}` has no effect with `method: {method}`, which samples nothing: leave it out"
                    )
        return self

    @model_validator(mode="after")
    def a_group_can_be_compared(self) -> "Config":
        if self.method.compares_a_group and self.group_size == 1:
            raise ValueError(
                f"`method: {self.method.name}` compares the samples of a prompt with each other: "
                "set `group_size` to 2 or more (8 is usual)"
            )
        return self

    @model_validator(mode="after")
    def critic_lr_has_an_effect(self) -> "Config":
        if not self.method.has_critic and "critic_lr" in self.optimizer.model_fields_set:
            raise ValueError(f"`optimizer.critic_lr` has no effect with `method: {self.method.name}`: it has no critic")
        return self

    @model_serializer(mode="wrap")
    def without_inert_critic_lr(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written can be read again."""
        written = dump(self)
        if not self.method.has_critic:
            written.get("optimizer", {}).pop("critic_lr", None)
        return written
