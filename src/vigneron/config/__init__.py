"""The config of a run. `recipe.py` reads recipes.

Nothing here imports torch, so that an invalid recipe is refused immediately.
"""

from typing import Any

from pydantic import SerializerFunctionWrapHandler, ValidationInfo, model_serializer, model_validator

from vigneron.config.checks import CHECKS, CHECKS_OF_NEW_RUNS, METHOD, with_default_reward, without_inert_keys
from vigneron.config.critics import TokenCriticConfig
from vigneron.config.curricula import (
    CurriculumConfig,
    CurriculumOptions,
    LevelCurriculumConfig,
    LossCurriculumConfig,
    SuccessCurriculumConfig,
)
from vigneron.config.custom import USER_CODE, SlotOptions
from vigneron.config.distill import DistillConfig, GadConfig
from vigneron.config.environments import (
    EndpointPlayerConfig,
    EnvironmentConfig,
    EnvironmentOptions,
    GameConfig,
    LocalPlayerConfig,
    PlayerConfig,
    PythonEnvironmentConfig,
    ToolsEnvironmentConfig,
)
from vigneron.config.group import GrapeConfig, GroupRelativeConfig, GrpoConfig
from vigneron.config.judges import EndpointJudgeConfig, JudgeConfig, LocalJudgeConfig, PythonJudgeConfig
from vigneron.config.kl import AdaptiveKlConfig, GrpoKlConfig, KlConfig, PenaltyConfig, RewardKlConfig
from vigneron.config.methods import MethodConfig
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
from vigneron.config.policy_gradient import (
    ActorCriticConfig,
    ConstraintConfig,
    PpoConfig,
    ReinforceConfig,
    TrpoConfig,
)
from vigneron.config.preferences import DpoConfig, KtoConfig, SppoConfig
from vigneron.config.rewards import (
    BinaryRewardConfig,
    CombinedRewardConfig,
    EnvironmentRewardConfig,
    GuardsConfig,
    ModelRewardConfig,
    OverlongConfig,
    PreferenceRewardConfig,
    ProbabilityRewardConfig,
    ProcessRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RubricRewardConfig,
    SemanticRewardConfig,
    TokenF1RewardConfig,
    is_api_embedder,
)
from vigneron.config.scale import (
    HereSamplingConfig,
    PoolConfig,
    RaySamplingConfig,
    ScaleConfig,
    VllmSamplingConfig,
)
from vigneron.config.scorers import PreferenceModelConfig, ProcessModelConfig, RewardModelConfig, ScoreModelConfig
from vigneron.config.supervised import FlowerConfig, RejectionSamplingConfig, SftConfig
from vigneron.config.top_level import DEFAULT_MICROBATCH_TOKENS, TopLevel
from vigneron.config.values import STORED, Strict, plain_url

__all__ = [
    "CHECKER_NAMES",
    "DEFAULT_MICROBATCH_TOKENS",
    "METHOD",
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
    "DistillConfig",
    "DpoConfig",
    "EndpointJudgeConfig",
    "EndpointParentConfig",
    "EndpointPlayerConfig",
    "EnvironmentConfig",
    "EnvironmentOptions",
    "EnvironmentRewardConfig",
    "FlowerConfig",
    "GadConfig",
    "GameConfig",
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
    "LocalPlayerConfig",
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
    "PlayerConfig",
    "PoolConfig",
    "PpoConfig",
    "PreferenceModelConfig",
    "PreferenceRewardConfig",
    "ProbabilityRewardConfig",
    "ProcessModelConfig",
    "ProcessRewardConfig",
    "PythonEnvironmentConfig",
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
    "TokenF1RewardConfig",
    "ToolsEnvironmentConfig",
    "ToprConfig",
    "TrpoConfig",
    "VllmSamplingConfig",
    "is_api_embedder",
    "plain_url",
]


class Config(TopLevel):
    """A whole recipe."""

    @model_validator(mode="before")
    @classmethod
    def given_texts_need_no_reward(cls, given: Any, info: ValidationInfo) -> Any:
        return with_default_reward(given, info.context)

    @model_validator(mode="after")
    def sections_fit_together(self, info: ValidationInfo) -> "Config":
        stored = (info.context or {}).get(STORED, False)
        for check in CHECKS if stored else (*CHECKS, *CHECKS_OF_NEW_RUNS):
            check(self)
        return self

    @model_serializer(mode="wrap")
    def written_to_be_read_again(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_inert_keys(self, dump(self))
