"""Preferences and labels without a reward model: DPO and its variants, KTO, SPPO."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from vigneron.config.options import MethodOptions, Reads
from vigneron.config.values import NotNegative, Positive


class DpoConfig(MethodOptions):
    """Direct preference optimization (`rlmt-grape` §4.9)."""

    description: ClassVar[str] = "Direct preference optimization on recorded or sampled pairs (rlmt-grape §4.9)."
    card: ClassVar[str] = (
        "Direct preference optimization: the preferred text of a pair becomes more likely than the other."
    )
    metrics: ClassVar[tuple[str, ...]] = (
        "loss/dpo",
        "loss/ipo",
        "loss/simpo",
        "loss/orpo",
        "loss/nll",
        "rewards/margins",
        "eval/rewards/accuracies",
        "eval/loss/dpo",
        "eval/loss/ipo",
        "eval/loss/simpo",
        "eval/loss/orpo",
        "eval/rewards/margins",
    )
    has_advantages: ClassVar[bool] = False
    name: Literal["dpo"]
    loss: Literal["dpo", "ipo", "simpo", "orpo"] = "dpo"
    """dpo: −log σ of the margin. ipo: squared distance of the mean margin to 1/2β. simpo: mean log-probs, no reference.
    orpo: NLL of the chosen text and β times the odds ratio, no reference."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """β, the scale of the margin: the larger, the closer the policy stays to the reference. Unless it is given, 2 with
    `loss: simpo` and 1 with `reference_free`."""
    gamma: NotNegative = 1.0
    """SimPO's margin."""
    reference_free: bool = False
    """The paper's first form: without π₀, whose risk of collapse it names."""
    pairs: Literal["recorded", "sampled"] = "recorded"
    """The columns `chosen` and `rejected`, or the best and the worst of a prompt's samples by the reward."""

    @model_validator(mode="before")
    @classmethod
    def fill_beta(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        if given.get("reference_free") is True:
            return {"beta": 1.0, **given}
        return {"beta": 2.0, **given} if given.get("loss") == "simpo" else given

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "DpoConfig":
        if self.loss != "simpo" and self.gamma != 1.0:
            raise ValueError(f"`gamma` has no effect with `loss: {self.loss}`: it is SimPO's margin")
        if self.loss != "dpo" and self.reference_free:
            raise ValueError(f"`reference_free` has no effect with `loss: {self.loss}`: leave it out")
        return self

    @property
    def uses_reference(self) -> bool:
        return self.loss in ("dpo", "ipo") and not self.reference_free

    @property
    def reads(self) -> Reads:
        return "pairs" if self.pairs == "recorded" else "prompts"

    @property
    def smallest_group(self) -> int:
        return 1 if self.pairs == "recorded" else 2


class KtoConfig(MethodOptions):
    """KTO (Ethayarajh et al. 2024): texts labelled good or bad, one by one instead of in pairs."""

    description: ClassVar[str] = "KTO: texts that are labelled good or bad, without pairs."
    card: ClassVar[str] = "KTO: texts labelled good become more likely than the base model has them, bad ones less."
    metrics: ClassVar[tuple[str, ...]] = ("loss/kto", "eval/loss/kto", "eval/rewards/accuracies")
    name: Literal["kto"]
    beta: Annotated[float, Field(gt=0)] = 0.1
    """β, the weight of the log-ratio to the reference."""
    desirable_weight: NotNegative = 1.0
    """Weight of the texts labelled 1."""
    undesirable_weight: NotNegative = 1.0
    """Weight of the texts labelled 0."""
    label: str = "label"
    """The column of labels: 1 for a good text, 0 for a bad one, or the share of people who find it good."""

    @property
    def smallest_step(self) -> int:
        return 2  # completions are put behind other rows' prompts

    @property
    def reads(self) -> Reads:
        return "demonstrations"

    @property
    def score_column(self) -> str | None:
        return self.label


class SppoConfig(MethodOptions):
    """SPPO (Wu et al. 2024; `rlmt-grape` §5): self-play on win rates. Each round moves the best and the worst
    sample of a prompt towards their win rates against the policy that sampled."""

    description: ClassVar[str] = "Self-play on win rates with a squared loss, one round per step (rlmt-grape §5)."
    card: ClassVar[str] = (
        "SPPO: self-play on win rates; the log-ratio to the previous policy is moved towards a sample's win rate."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/sppo",)
    has_advantages: ClassVar[bool] = False
    needs_win_rates: ClassVar[bool] = True
    name: Literal["sppo"]
    eta: Annotated[float, Field(gt=0)] = 1000.0
    """η, the inverse of the KL's coefficient: how far a round moves the policy."""
    against: Literal["previous", "reference"] = "previous"
    """π_t: the policy that sampled, so that a step is a round; or the policy at the run's start, so that a run is a
    round and the next one starts from its folder. Samples, and the opponents they win against, are the current policy's
    in both."""
    updates_per_step: Positive = 1
    """Updates on the samples of one step."""
    samples: Literal["best_and_worst", "all"] = "best_and_worst"
    """The samples of a group that are trained on."""

    @property
    def uses_reference(self) -> bool:
        return self.against == "reference"

    @property
    def smallest_group(self) -> int:
        return 2
