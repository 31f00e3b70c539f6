"""Methods that train a reward model: a scalar score for a text or a pair of texts."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vigneron.config.options import MethodOptions, Reads, StepLabels


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


class ProcessModelConfig(MethodOptions):
    """A process reward model (`rlmt-grape` §5): the probability that each step of a solution is right."""

    description: ClassVar[str] = (
        "A process reward model: cross-entropy of each step's label at the step's last token (rlmt-grape §5)."
    )
    card: ClassVar[str] = "A process reward model: the probability that each step of a solution is right."
    metrics: ClassVar[tuple[str, ...]] = ("loss/score", "score_error", "eval/loss", "eval/score_error")
    trains: ClassVar[Literal["policy", "scorer"]] = "scorer"
    name: Literal["process_model"]
    labels: str = "labels"
    """The column of labels: for each step 1 (right), 0 (wrong), null (unclear), or the share of continuations that end
    right."""
    separator: Annotated[str, Field(min_length=1)] | None = "\n"
    """What stands between steps. null: a completion is one step."""
    steps: Literal["all", "last"] = "all"
    """all: a process model. last: an outcome model, which learns the last step's label alone."""

    @property
    def reads(self) -> Reads:
        return "demonstrations"

    @property
    def step_labels(self) -> StepLabels | None:
        return StepLabels(self.labels, self.separator, self.steps == "last")
