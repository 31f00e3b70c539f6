"""Methods on recorded or reference samples (`rlmt-grape` §5): TOPR, OREO, A*-PO."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.critics import TokenValueConfig
from vigneron.config.kl import KlConfig
from vigneron.config.options import MethodOptions, Reads
from vigneron.config.values import NotNegative, Positive


class RecordedOptions(MethodOptions):
    """Options of methods that read recorded samples with their rewards."""

    reward_column: str = "reward"
    """The column of the rewards of recorded samples."""

    @model_validator(mode="before")
    @classmethod
    def as_earlier_versions_wrote_it(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "score" in given and "reward_column" not in given:
            return {"reward_column" if key == "score" else key: value for key, value in given.items()}
        return given


class ToprConfig(RecordedOptions):
    """TOPR (Le Roux et al. 2025; `rlmt-grape` §5): REINFORCE on samples of another policy, where a bad text loses its
    weight as the policy stops writing it."""

    description: ClassVar[str] = "Tapered off-policy REINFORCE on recorded or sampled texts (rlmt-grape §5)."
    card: ClassVar[str] = (
        "TOPR: off-policy REINFORCE; bad texts are weighted by how likely the policy still writes them."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/topr", "topr/weight")
    weighs_samples: ClassVar[bool] = True
    loss_falls: ClassVar[bool] = False
    name: Literal["topr"]
    samples: Literal["recorded", "sampled"] = "recorded"
    """recorded: rows with `prompt`, `completion` and a reward, as `vigneron sample` writes them. sampled: the policy's
    own."""
    rewards: Literal["as_given", "signed", "advantage"] = "as_given"
    """signed: 2R − 1, for rewards from 0 to 1. advantage: R minus the mean of the prompt's samples."""
    taper: bool = True
    """false: every sample has weight 1, which is plain REINFORCE on another policy's samples."""
    updates_per_step: Positive = 1
    """Updates on each step's samples."""

    @property
    def reads(self) -> Reads:
        return "recorded" if self.samples == "recorded" else "prompts"

    @property
    def score_column(self) -> str | None:
        return self.reward_column if self.samples == "recorded" else None

    @property
    def score_range(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.rewards == "signed" else None

    @property
    def smallest_group(self) -> int:
        return 2 if self.samples == "sampled" and self.rewards == "advantage" else 1

    @model_validator(mode="after")
    def reward_column_has_an_effect(self) -> "ToprConfig":
        if self.samples == "sampled" and "reward_column" in self.model_fields_set:
            raise ValueError("`reward_column` has no effect with `samples: sampled`, which uses the config's `reward`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        return {k: v for k, v in dump(self).items() if k != "reward_column" or self.samples == "recorded"}


class OreoCriticConfig(TokenValueConfig):
    """The value, which reads before every token. OREO's own has a network apart from the policy's."""

    network: Literal["head", "own"] = "own"
    """A linear head on the policy's states, which it does not shape, or a model that begins as the policy's copy."""
    coefficient: NotNegative = 1.0
    """Weight of the value's loss."""


class OreoKlConfig(KlConfig):
    """KL(π ‖ reference) in the loss."""

    coefficient: NotNegative = 0.01
    """The weight of the KL in the loss."""


class OreoConfig(RecordedOptions):
    """OREO (Wang et al. 2024; `rlmt-grape` §5): policy and value learned together from recorded samples, so that the
    value before each token is the reward less the log-ratios that follow."""

    description: ClassVar[str] = "Policy and value together on recorded samples, by path consistency (rlmt-grape §5)."
    card: ClassVar[str] = "OREO: policy and value are trained together on recorded samples, by soft path consistency."
    metrics: ClassVar[tuple[str, ...]] = ("loss/oreo", "loss/value", "critic/explained_variance")
    name: Literal["oreo"]
    reward_column: str = "reward"
    """The column of the rewards of recorded samples, from 0 to 1."""
    beta: Annotated[float, Field(gt=0)] = 0.03
    """β, the weight of the log-ratio to the reference in the path."""
    critic: OreoCriticConfig = OreoCriticConfig()
    kl: OreoKlConfig = OreoKlConfig()

    @property
    def reads(self) -> Reads:
        return "recorded"

    @property
    def score_column(self) -> str | None:
        return self.reward_column

    @property
    def has_critic(self) -> bool:
        return True

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "OreoConfig":
        if self.kl.against == "previous" or self.kl.adaptive:
            key = "against: previous" if self.kl.against == "previous" else "adaptive"
            raise ValueError(f"`kl.{key}` has no effect with `oreo`, whose KL is to the reference, with a fixed weight")
        return self


class AStarPoConfig(MethodOptions):
    """A*-PO (Brantley et al. 2025; `rlmt-grape` §5): V* of each prompt from samples of the reference, drawn once; then
    one sample a prompt, and a squared loss."""

    description: ClassVar[str] = "Regression on V* of the reference's samples, one sample per prompt (rlmt-grape §5)."
    card: ClassVar[str] = (
        "A*-PO: the log-ratio to the base model is regressed on the reward less the prompt's value V*."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/a_star", "value")
    has_advantages: ClassVar[bool] = False
    compares_prompts: ClassVar[bool] = True
    name: Literal["a_star_po"]
    reference_samples: Positive = 8
    """Samples of the reference for each training prompt, drawn before the first step and kept in the run's folder."""
    value_beta: Annotated[float, Field(gt=0)] = 0.5
    """β₁ of V* = β₁ log mean e^{r/β₁}: small is the best sample's reward, large is the mean."""
    beta: Annotated[float, Field(gt=0)] = 1e-3
    """β₂, the weight of the log-ratio to the reference."""
    unsolved: Literal["keep", "drop"] = "keep"
    """Prompts of which no sample of the reference has a reward above 0. drop: their samples are not trained on."""
    entropy_coefficient: NotNegative = 1e-3
    """Weight of the entropy bonus in the loss."""
