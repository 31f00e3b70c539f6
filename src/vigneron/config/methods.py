"""All methods' options, by the method's name; each family has a module."""

from typing import Annotated

from pydantic import Field

from vigneron.config.custom import with_user_options
from vigneron.config.distill import DistillConfig, GadConfig
from vigneron.config.group import GrapeConfig, GrpoConfig
from vigneron.config.offline import AStarPoConfig, OreoConfig, ToprConfig
from vigneron.config.options import MethodOptions
from vigneron.config.policy_gradient import ActorCriticConfig, PpoConfig, ReinforceConfig, TrpoConfig
from vigneron.config.preferences import DpoConfig, KtoConfig, SppoConfig
from vigneron.config.scorers import PreferenceModelConfig, ProcessModelConfig, RewardModelConfig, ScoreModelConfig
from vigneron.config.supervised import FlowerConfig, RejectionSamplingConfig, SftConfig

MethodConfig = Annotated[
    ActorCriticConfig
    | AStarPoConfig
    | DistillConfig
    | DpoConfig
    | FlowerConfig
    | GadConfig
    | GrapeConfig
    | GrpoConfig
    | KtoConfig
    | OreoConfig
    | PpoConfig
    | PreferenceModelConfig
    | ProcessModelConfig
    | ReinforceConfig
    | RejectionSamplingConfig
    | RewardModelConfig
    | ScoreModelConfig
    | SftConfig
    | SppoConfig
    | ToprConfig
    | TrpoConfig,
    Field(discriminator="name"),
    with_user_options(MethodOptions),
]
