"""Methods that train a reward model: a scalar score for a text or a pair of texts."""

from typing import ClassVar, Literal

from vigneron.config.options import MethodOptions, Reads


class PairScorerConfig(MethodOptions):
    """Options of models trained on preference pairs."""

    trains: ClassVar[Literal["policy", "scorer"]] = "scorer"

    @property
    def reads(self) -> Reads:
        return "pairs"


class RewardModelConfig(PairScorerConfig):
    """A reward model from preference pairs (`rlmt-grape` eq. 5-6)."""

    description: ClassVar[str] = "A reward model from preference pairs, Bradley-Terry loss (rlmt-grape eq. 5-6)."
    card: ClassVar[str] = "A reward model: the preferred text of a pair gets the higher score (Bradley-Terry)."
    metrics: ClassVar[tuple[str, ...]] = ("loss/bradley_terry", "margin", "eval/loss", "eval/margin")
    name: Literal["reward_model"]


class PreferenceModelConfig(PairScorerConfig):
    """A preference model (`rlmt-grape` §3): of two texts, the probability that the first is better."""

    description: ClassVar[str] = (
        "A preference model: the probability that the first of two texts is better (rlmt-grape §3)."
    )
    card: ClassVar[str] = "A preference model: the probability that the first of two texts is better."
    metrics: ClassVar[tuple[str, ...]] = ("loss/preference", "eval/loss", "eval/margin")
    joins_pairs: ClassVar[bool] = True
    name: Literal["preference_model"]


class ScoreModelConfig(MethodOptions):
    """A reward model from human scores, GRAPE's reward fine-tuning (`rlmt-grape` §6.1)."""

    description: ClassVar[str] = "A reward model from human scores; GRAPE's reward fine-tuning (rlmt-grape §6.1)."
    card: ClassVar[str] = "A reward model of human scores: a score is the share of people who would accept a text."
    metrics: ClassVar[tuple[str, ...]] = ("loss/score", "score_error", "eval/loss", "eval/score_error")
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
