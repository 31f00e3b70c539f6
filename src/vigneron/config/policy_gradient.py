"""Policy gradients with a baseline or a critic: Algorithm 1 of PGSRM, REINFORCE, PPO, TRPO."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.critics import PpoCriticConfig, TokenCriticConfig
from vigneron.config.kl import KlConfig, PenaltyConfig, ReinforceKlConfig, RewardKlConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import NotNegative, Positive, Strict


class ActorCriticConfig(MethodOptions):
    """PGSRM's Algorithm 1 (`pgsrm`, A.4), and §3.3's clipped objective."""

    description: ClassVar[str] = (
        "PGSRM's Algorithm 1: policy gradient with one value per prompt and a KL; optionally the clipped ratio (§3.3)."
    )
    card: ClassVar[str] = (
        "Actor-critic by PGSRM's Algorithm 1: the policy gradient, with a value for each prompt as the baseline."
    )
    name: Literal["actor_critic"]
    faithful: bool = False
    """Algorithm 1 to the letter: k1 differentiated, the value read after the last completion token."""
    updates_per_step: Positive = 1
    """Updates on each step's samples."""
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] | None = None
    """null: the unclipped policy loss of Algorithm 1. A number: §3.3's clipped ratio."""
    entropy_coefficient: NotNegative = 0.01
    """Weight of the entropy bonus in the loss."""
    value_coefficient: NotNegative = 0.5
    """Weight of the critic's loss."""
    value_position: Literal["last_prompt", "last_completion"] = "last_prompt"
    """Where the value is read: before the answer, or after its last token (Algorithm 1)."""
    value_start: Literal["zero", "random"] = "zero"
    """The critic's head at the start. zero: V = 0. random: as torch starts a linear layer, which PGSRM's released code
    does; the first baselines are then noise."""
    kl: KlConfig = KlConfig()

    @property
    def has_critic(self) -> bool:
        return True

    @model_validator(mode="before")
    @classmethod
    def fill_faithful(cls, given: Any) -> Any:
        """`faithful` decides the estimator and the value's position; a contradiction is an error."""
        if not isinstance(given, Mapping) or given.get("faithful") is not True:
            return given
        kl = given.get("kl") or {}
        if isinstance(kl, KlConfig):
            kl = kl.model_dump(exclude_unset=True)
        if not isinstance(kl, Mapping):
            return given
        wanted = {"kl.estimator": "k1", "kl.against": "reference", "value_position": "last_completion"}
        values = {
            "kl.estimator": kl.get("estimator"),
            "kl.against": kl.get("against"),
            "value_position": given.get("value_position"),
        }
        for key, value in wanted.items():
            if values[key] not in (None, value):
                raise ValueError(f"`faithful: true` means `{key}: {value}`: leave out one of the two")
        if given.get("clip_epsilon") is not None:
            raise ValueError("`faithful: true` has no clipping: leave out `clip_epsilon`")
        return {
            **given,
            "value_position": "last_completion",
            "kl": {**kl, "estimator": "k1", "against": "reference"},
        }

    @model_validator(mode="after")
    def several_updates_need_the_ratio(self) -> "ActorCriticConfig":
        if self.updates_per_step > 1 and self.clip_epsilon is None:
            raise ValueError(
                "several updates a step need `clip_epsilon`: without a ratio the later ones are off-policy"
            )
        return self


class ReinforceConfig(MethodOptions):
    """REINFORCE (`rlmt-grape` eq. 3): the reward-weighted log-likelihood, less a baseline."""

    description: ClassVar[str] = "Reward-weighted log-likelihood minus a baseline (rlmt-grape eq. 3)."
    card: ClassVar[str] = "REINFORCE: the reward-weighted log-likelihood of samples, minus a baseline."
    name: Literal["reinforce"]
    baseline: Literal["none", "constant", "running_mean", "leave_one_out", "critic"] = "critic"
    """What is subtracted from the reward. leave_one_out: the mean reward of the prompt's other samples (RLOO)."""
    constant: float | None = None
    """For `baseline: constant`."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """For `baseline: running_mean`: how much of it stays from step to step."""
    critic: TokenCriticConfig = TokenCriticConfig()
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the entropy bonus in the loss."""
    kl: ReinforceKlConfig = ReinforceKlConfig()

    @property
    def has_critic(self) -> bool:
        return self.baseline == "critic"

    @property
    def smallest_group(self) -> int:
        return 2 if self.baseline == "leave_one_out" else 1

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "ReinforceConfig":
        given = self.model_fields_set
        for key, baseline in (("constant", "constant"), ("decay", "running_mean"), ("critic", "critic")):
            if key in given and self.baseline != baseline:
                raise ValueError(f"`{key}` has no effect with `baseline: {self.baseline}`")
        if self.baseline == "constant" and self.constant is None:
            raise ValueError("`baseline: constant` needs `constant`: a number")
        if self.kl.adaptive:
            raise ValueError("`kl.adaptive` has no effect with `reinforce`, whose KL coefficient is fixed")
        if self.kl.against == "previous" or self.critic.clip is not None:
            key = "kl.against: previous" if self.kl.against == "previous" else "critic.clip"
            raise ValueError(f"`{key}` has no effect with `reinforce`: after one update there is no policy before")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        owners = {"constant": "constant", "decay": "running_mean", "critic": "critic"}
        return {k: v for k, v in dump(self).items() if owners.get(k, self.baseline) == self.baseline}


class PpoConfig(MethodOptions):
    """PPO (`rlmt-grape` eq. 11-12): the clipped ratio, a critic, and the KL in the reward."""

    description: ClassVar[str] = "Clipped ratio, a critic, and the KL in the reward (rlmt-grape eq. 11-12)."
    card: ClassVar[str] = "PPO: the clipped ratio, with a critic and the KL to the base model in the reward."
    name: Literal["ppo"]
    updates_per_step: Positive = 4
    """How often a step's samples are gone through."""
    minibatches: Positive = 1
    """How many updates each of these passes is cut into."""
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε of the clipped ratio."""
    advantage: Literal["gae", "eq_12"] = "gae"
    """gae: rewards a token, −βk1 at each and R at the last, through GAE, as practised. eq_12: R − βk1 − V at each."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The discount of GAE."""
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of GAE."""
    critic: PpoCriticConfig = PpoCriticConfig()
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the entropy bonus in the loss."""
    kl: RewardKlConfig = RewardKlConfig()

    @property
    def has_critic(self) -> bool:
        return True

    @property
    def takes_step_rewards(self) -> bool:
        return self.advantage == "gae"

    @model_validator(mode="after")
    def gae_has_an_effect(self) -> "PpoConfig":
        for key in ("gamma", "lam"):
            if self.advantage == "eq_12" and key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `advantage: eq_12`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        return {k: v for k, v in dump(self).items() if self.advantage == "gae" or k not in ("gamma", "lam")}


class ConstraintConfig(Strict):
    """Eq. 10: KL(π₀ ‖ π₁) ≤ δ, by the natural gradient and a line search."""

    delta: Annotated[float, Field(gt=0)] = 0.01
    """The largest KL(π₀ ‖ π₁) of a step, in nats per token."""
    over: Literal["mean", "max"] = "mean"
    """The mean over tokens, which the paper relaxes it to, or every token."""
    iterations: Positive = 10
    """Of the conjugate gradient."""
    damping: NotNegative = 0.01
    """Added to the diagonal of the Fisher matrix."""
    attempts: Positive = 15
    """Of the line search, each with half the step of the one before."""


class TrpoConfig(MethodOptions):
    """TRPO (`rlmt-grape` eq. 7-10): the importance ratio with a KL to π₀ as a penalty, or as a constraint."""

    description: ClassVar[str] = (
        "Importance ratio with KL(π₀ ‖ π₁) as a penalty or as a constraint (rlmt-grape eq. 7-10)."
    )
    card: ClassVar[str] = (
        "TRPO: the importance ratio, with the KL to the policy that sampled as a penalty or a constraint."
    )
    keeps_previous: ClassVar[bool] = True
    name: Literal["trpo"]
    form: Literal["penalty", "constraint"] = "penalty"
    """penalty: eq. 9, several updates with a KL penalty. constraint: eq. 10, one step within a trust region."""
    updates_per_step: Positive = 4
    """Of the penalty's form; the constraint makes one step."""
    penalty: PenaltyConfig = PenaltyConfig()
    constraint: ConstraintConfig = ConstraintConfig()
    critic: TokenCriticConfig = TokenCriticConfig()
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""

    @property
    def has_critic(self) -> bool:
        return True

    @property
    def steps_by_gradient(self) -> bool:
        return self.form == "penalty"

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "TrpoConfig":
        inert = ("constraint",) if self.form == "penalty" else ("penalty", "updates_per_step")
        for key in inert:
            if key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `form: {self.form}`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        inert = ("constraint",) if self.form == "penalty" else ("penalty", "updates_per_step")
        return {k: v for k, v in dump(self).items() if k not in inert}
