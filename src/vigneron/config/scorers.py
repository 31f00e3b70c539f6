"""The methods that train a model to give a text one number."""

from typing import ClassVar, Literal

from vigneron.config.options import MethodOptions, Reads


class PairScorerConfig(MethodOptions):
    trains: ClassVar[Literal["policy", "scorer"]] = "scorer"

    @property
    def reads(self) -> Reads:
        return "pairs"


class RewardModelConfig(PairScorerConfig):
    """A reward model of preference pairs (`rlmt-grape` eq. 5-6)."""

    name: Literal["reward_model"]


class PreferenceModelConfig(PairScorerConfig):
    """A preference model (`rlmt-grape` §3): of two texts, the probability that the first is better."""

    joins_pairs: ClassVar[bool] = True
    name: Literal["preference_model"]


class ScoreModelConfig(MethodOptions):
    """A reward model of people's scores: what GRAPE calls reward fine-tuning (`rlmt-grape` §6.1)."""

    trains: ClassVar[Literal["policy", "scorer"]] = "scorer"
    name: Literal["score_model"]
    score: str = "score"
    """The column of scores, from 0 to 1; a label is 0 or 1."""

    @property
    def reads(self) -> Reads:
        return "demonstrations"

    @property
    def score_column(self) -> str | None:
        return self.score
