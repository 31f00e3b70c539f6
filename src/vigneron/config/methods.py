"""The options of each method."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.critics import PpoCriticConfig, TokenCriticConfig
from vigneron.config.custom import with_user_options
from vigneron.config.group import GrapeConfig, GrpoConfig
from vigneron.config.kl import KlConfig, PenaltyConfig, ReinforceKlConfig, RewardKlConfig
from vigneron.config.offline import AStarPoConfig, OreoConfig, ToprConfig
from vigneron.config.options import Aggregation, MethodOptions, Reads
from vigneron.config.scorers import PreferenceModelConfig, ProcessModelConfig, RewardModelConfig, ScoreModelConfig
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
    def smallest_group(self) -> int:
        return self.keep if self.min_reward is not None else self.keep + 1


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
    """Unless it is given, 2 with `loss: simpo` and 1 with `reference_free`."""
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
    def has_reference(self) -> bool:
        return self.loss in ("dpo", "ipo") and not self.reference_free

    @property
    def reads(self) -> Reads:
        return "pairs" if self.pairs == "recorded" else "prompts"

    @property
    def smallest_group(self) -> int:
        return 1 if self.pairs == "recorded" else 2


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
    def score_column(self) -> str | None:
        return self.score


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
    def smallest_group(self) -> int:
        return 2


MethodConfig = Annotated[
    ActorCriticConfig
    | AStarPoConfig
    | DpoConfig
    | FlowerConfig
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
