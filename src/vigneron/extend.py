"""Everything that a method, a rollout or a curriculum of your own imports: see docs/guides/extend.md."""

from vigneron.batch import Batch
from vigneron.config import Config, SlotOptions
from vigneron.config.kl import GrpoKlConfig, KlConfig, RewardKlConfig
from vigneron.config.options import MethodOptions
from vigneron.data.curriculum import Curriculum, CurriculumParts
from vigneron.data.prompts import Row
from vigneron.methods.terms import clipped_terms, entropy_bonus, policy_metrics, with_advantages
from vigneron.methods.token_critic import token_critic, value_term, with_returns
from vigneron.policy.logprobs import Scores
from vigneron.rollout.build import Rollout, RolloutParts
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term

__all__ = [
    "Batch",
    "Config",
    "Curriculum",
    "CurriculumParts",
    "GrpoKlConfig",
    "KlConfig",
    "KlPenalty",
    "Method",
    "MethodOptions",
    "Parts",
    "RewardKlConfig",
    "Rollout",
    "RolloutParts",
    "Row",
    "Scores",
    "SlotOptions",
    "Term",
    "clipped_terms",
    "entropy_bonus",
    "policy_metrics",
    "token_critic",
    "value_term",
    "with_advantages",
    "with_returns",
]
