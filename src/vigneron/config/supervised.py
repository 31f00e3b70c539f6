"""Likelihood of given or kept texts: SFT, rejection sampling, flow-guided tuning."""

from typing import ClassVar, Literal

from vigneron.config.options import Aggregation, MethodOptions, Reads
from vigneron.config.values import NotNegative, Positive


class SftConfig(MethodOptions):
    """Fine-tuning on demonstrations (`rlmt-grape` eq. 1-2): the negative log-likelihood of texts or their answers."""

    description: ClassVar[str] = (
        "Supervised fine-tuning: negative log-likelihood of demonstrations (rlmt-grape eq. 1-2)."
    )
    card: ClassVar[str] = "Supervised fine-tuning: the negative log-likelihood of demonstrations."
    metrics: ClassVar[tuple[str, ...]] = ("loss/nll", "eval/loss/nll")
    name: Literal["sft"]
    loss_on: Literal["answers", "text"] = "answers"
    """answers: what the assistant says, every turn of it in `messages`. text: the prompts too, as eq. 1 is written."""
    packing: bool = False
    """For models with their own kind of attention: several short samples in one row, kept apart by a mask. Less
    padding, the same gradient. Samples of all other models are always packed."""
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""

    @property
    def reads(self) -> Reads:
        return "demonstrations"

    @property
    def uses_reference(self) -> bool:
        return False


class RejectionSamplingConfig(MethodOptions):
    """Rejection sampling (`rlmt-grape` §3): fine-tuning on the best of a prompt's samples. A step is a round."""

    description: ClassVar[str] = "Fine-tuning on the best of each prompt's samples, one round per step (rlmt-grape §3)."
    card: ClassVar[str] = "Rejection sampling: fine-tuning on the best of each prompt's samples."
    metrics: ClassVar[tuple[str, ...]] = ("loss/nll", "kept/reward")
    has_advantages: ClassVar[bool] = False
    name: Literal["rejection_sampling"]
    keep: Positive = 1
    """Number of best samples per prompt that are trained on."""
    min_reward: float | None = None
    """Minimum reward of a kept sample. A prompt without such a sample is rejected."""
    updates_per_round: Positive = 1
    """Updates on the kept samples of a round."""
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""

    @property
    def uses_reference(self) -> bool:
        return False

    @property
    def smallest_group(self) -> int:
        return self.keep if self.min_reward is not None else self.keep + 1


class FlowerConfig(MethodOptions):
    """Flow-guided tuning (Flower, Gao et al. 2025; `rlmt-grape` §5.3): answers in proportion to their scores."""

    description: ClassVar[str] = "A prompt's answers in proportion to their scores: GFlowNet balance (rlmt-grape §5.3)."
    card: ClassVar[str] = (
        "Flow-guided tuning: a prompt's recorded answers become as likely as their share of the scores."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/flow", "loss/nll", "eval/loss/flow")
    scores_above_zero: ClassVar[bool] = True
    name: Literal["flower"]
    score: str = "score"
    """The column of scores, above 0 and at most 1. A prompt has one row for each of its answers."""
    nll_coefficient: NotNegative = 0.0
    """Weight of the answers' negative log-likelihood beside the balance."""

    @property
    def reads(self) -> Reads:
        return "demonstrations"

    @property
    def uses_reference(self) -> bool:
        return False

    @property
    def score_column(self) -> str | None:
        return self.score
