"""The run's config: what a recipe may say, and what contradicts itself. Recipes are read in `recipe.py`.

Light on purpose: no torch here, so that a bad recipe is refused at once.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
DEFAULT_MICROBATCH_TOKENS = 4096
NotNegative = Annotated[float, Field(ge=0)]
CHECKER_NAMES = ("equality", "sentiment_inversion")
TASK_PARTS = ("held_out", "tuning")
"""What a built-in task may be evaluated on."""


def plain_url(url: str) -> str:
    """An address and nothing else: what is refused is not repeated, it may hold a secret."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError("should be a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "should hold no user, password or query: it is written into the run's folder "
            "(a key goes into the environment, as OPENAI_API_KEY)"
        )
    return url


Url = Annotated[str, AfterValidator(plain_url)]


def is_api_embedder(name: str) -> bool:
    return name.startswith(("text-embedding-", "api:"))


class Strict(BaseModel):
    """Unknown keys are refused, and a text is not a number; neither is infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"should be one of auto, cpu, mps, cuda, cuda:N, not {name!r}")
    return name


def _dotted_path(path: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", path):
        raise ValueError(f"should be of the form module:function, not {path!r}")
    return path


def _known_checker(name: str) -> str:
    if name not in CHECKER_NAMES and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ValueError(f"should be one of {', '.join(CHECKER_NAMES)}, or module:function, not {name!r}")
    return name


class LoraConfig(Strict):
    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: str | list[str] = "all-linear"


class ModelConfig(Strict):
    name: str = "smollm2-135m"
    """A hub id, a folder, or `smollm2-135m`, which comes with the installation."""
    device: Annotated[str, AfterValidator(_known_device)] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What matrix products run in; weights are float32 always."""
    lora: LoraConfig | None = None
    activation_checkpointing: bool = False
    compile: bool | Literal["auto"] = "auto"
    """torch.compile for layers and losses, on a CUDA device: takes half a minute at the start. auto: from 200 steps."""
    graphs: bool = True
    """On a CUDA device, passes whose shapes repeat are replayed as CUDA graphs."""
    allow_pickle: bool = False
    trust_remote_code: bool = False


class DataConfig(Strict):
    task: str | None = None
    """A built-in task, or give `train`."""
    train: str | None = None
    """A .jsonl or .csv file with a column `prompt`, and `answer` where the reward compares with one."""
    held_out: str | None = None
    """The same, for evaluation. A built-in task brings its own, `held_out`, and another one for choosing settings,
    `tuning`."""
    template: str | None = None
    """Makes the prompt of other columns, as in `The opposite of '{word}' is `."""
    checker: Annotated[str, AfterValidator(_known_checker)] | None = None
    """What counts as right: `equality` (after normalisation), `sentiment_inversion`, or `module:function`, a reward
    that gives 0 or 1. None: the task's own, or equality."""

    @model_validator(mode="after")
    def one_source(self) -> "DataConfig":
        if (self.task is None) == (self.train is None):
            raise ValueError("give either `task` or `train`")
        if self.task is not None and self.held_out not in (None, *TASK_PARTS):
            raise ValueError(
                f"the task '{self.task}' brings its own parts: `held_out` is one of {', '.join(TASK_PARTS)}"
            )
        return self


class AskedParentConfig(Strict):
    """A parent that is asked once for every prompt, greedily; its answers are kept."""

    model: str
    instruction: str | None = None
    """The system message. None: the task's own, or none."""
    input: str | None = None
    """The user's message, made of a row's columns, as in `{first} + {second} = `. None: the task's, or the prompt."""
    reads: Literal["json", "text"] | None = None
    """json: the answer stands in {"OUTPUT": …} and nowhere else. None: as the task says, or text."""
    max_tokens: Positive = 64


class EndpointParentConfig(AskedParentConfig):
    """Any OpenAI-compatible endpoint. The key is OPENAI_API_KEY of the environment, and is written nowhere."""

    kind: Literal["endpoint"]
    url: Url | None = None
    """None: OPENAI_BASE_URL, or OpenAI's own."""
    concurrency: Annotated[int, Field(gt=0, le=256)] = 8
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For one answer; a question with all its retries takes five minutes at most."""
    retries: Annotated[int, Field(ge=0, le=20)] = 5
    missing_limit: Share = 0.05
    """Prompts that got no answer are left out; more than this share of them, and nothing is trained."""


class LocalParentConfig(AskedParentConfig):
    """A transformers model: a hub id, a folder, or a bundled one."""

    kind: Literal["local"]
    missing_limit: Share = 0.05


ParentConfig = Annotated[EndpointParentConfig | LocalParentConfig, Field(discriminator="kind")]


class SamplingConfig(Strict):
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    mask_truncated: bool = False
    """Do not train on completions that the length limit cut."""


class GuardsConfig(Strict):
    """Against rewards that are gamed; all off unless asked for, and in the paper's recipes."""

    input_weight: NotNegative = 0.0
    """How much of the similarity to the input is subtracted from the similarity to the answer."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """A completion of more than so many times the answer's words earns nothing."""
    max_repetition: Share | None = None
    """A completion of which more than this share of words are repeated earns nothing."""
    second_embedder: str | None = None
    """The smaller of the two embedders' rewards counts."""


class SemanticRewardConfig(Strict):
    """PGSRM's reward."""

    kind: Literal["semantic"]
    embedder: str = "lexical"
    """`lexical`, `wordllama`, `minilm`, a Numberbatch file, a sentence-transformers folder or hub id, a
    `text-embedding-…` of OpenAI's, or `api:NAME` of any OpenAI-compatible endpoint."""
    url: Url | None = None
    """Where an embedder over an API is. None: OPENAI_BASE_URL, or OpenAI's own."""
    guards: GuardsConfig = GuardsConfig()
    alpha: Annotated[float, Field(ge=1)] = 4.0
    form: Literal["clip", "shift", "euclidean"] = "clip"
    clean: Literal["letters", "none"] = "letters"
    """letters: embed lowercased text with everything but letters removed, as the released code does."""
    missing_limit: Share = 0.05

    @model_validator(mode="after")
    def url_has_an_effect(self) -> "SemanticRewardConfig":
        embedders = (self.embedder, self.guards.second_embedder)
        if self.url is not None and not any(name and is_api_embedder(name) for name in embedders):
            raise ValueError(
                f"`url` has no effect with `embedder: {self.embedder}`, which is no API: "
                "leave it out, or name one as `api:NAME`"
            )
        return self

    @model_validator(mode="after")
    def alpha_has_an_effect(self) -> "SemanticRewardConfig":
        if self.form == "euclidean" and "alpha" in self.model_fields_set:
            raise ValueError("`alpha` has no effect with `form: euclidean`")
        return self

    @model_validator(mode="after")
    def guards_need_a_reward_from_zero(self) -> "SemanticRewardConfig":
        if self.form == "euclidean" and self.guards != GuardsConfig(second_embedder=self.guards.second_embedder):
            raise ValueError(
                "with `form: euclidean` rewards may be below 0, and guards would raise them: leave them out"
            )
        return self

    @model_serializer(mode="wrap")
    def without_inert_alpha(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written can be read again."""
        return {k: v for k, v in dump(self).items() if k != "alpha" or self.form != "euclidean"}


class BinaryRewardConfig(Strict):
    """1 where `data.checker` says that a completion is right, else 0."""

    kind: Literal["binary"]
    missing_limit: Share = 0.05


class PythonRewardConfig(Strict):
    """Your own function of TRL's signature."""

    kind: Literal["python"]
    function: Annotated[str, AfterValidator(_dotted_path)]
    """`module:function`."""
    missing_limit: Share = 0.05


RewardConfig = Annotated[SemanticRewardConfig | BinaryRewardConfig | PythonRewardConfig, Field(discriminator="kind")]


class AdaptiveKlConfig(Strict):
    """The released PGSRM rule, bounded: × 1.5 above 1.5 · target, ÷ 1.5 below target / 1.5."""

    target: Annotated[float, Field(gt=0)] = 0.8
    minimum: NotNegative = 1e-6
    maximum: NotNegative = 0.1

    @model_validator(mode="after")
    def bounds_do_not_cross(self) -> "AdaptiveKlConfig":
        if self.minimum > self.maximum:
            raise ValueError(f"`minimum` ({self.minimum}) is above `maximum` ({self.maximum})")
        return self


class KlConfig(Strict):
    coefficient: NotNegative = 5e-5
    estimator: Literal["exact", "k1", "k2", "k3"] = "exact"
    """exact and k2 have the reverse KL's gradient; k1 has none in expectation, k3 the forward KL's."""
    against: Literal["reference", "previous"] = "reference"
    """The policy at the run's start, or the one that sampled; for the latter name k2 or another estimator."""
    adaptive: AdaptiveKlConfig | None = None

    @model_validator(mode="after")
    def starts_within_its_bounds(self) -> "KlConfig":
        bounds = self.adaptive
        if bounds and not bounds.minimum <= self.coefficient <= bounds.maximum:
            raise ValueError(f"`coefficient` is outside of `adaptive`'s bounds, {bounds.minimum} to {bounds.maximum}")
        return self

    @model_validator(mode="after")
    def exact_needs_the_reference(self) -> "KlConfig":
        if self.against == "previous" and self.estimator == "exact":
            raise ValueError("`against: previous` is estimated from sampled tokens: add `estimator: k2`")
        return self


class ActorCriticConfig(Strict):
    """PGSRM's Algorithm 1 (`pgsrm`, A.4), and §3.3's clipped objective."""

    has_critic: ClassVar[bool] = True
    compares_a_group: ClassVar[bool] = False
    name: Literal["actor_critic"]
    faithful: bool = False
    """Algorithm 1 to the letter: k1 differentiated, the value read after the last completion token."""
    updates_per_step: Positive = 1
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] | None = None
    """None: the unclipped policy loss of Algorithm 1. A number: §3.3's clipped ratio."""
    entropy_coefficient: NotNegative = 0.01
    value_coefficient: NotNegative = 0.5
    value_position: Literal["last_prompt", "last_completion"] = "last_prompt"
    kl: KlConfig = KlConfig()

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
        found = {
            "kl.estimator": kl.get("estimator"),
            "kl.against": kl.get("against"),
            "value_position": given.get("value_position"),
        }
        for key, value in wanted.items():
            if found[key] not in (None, value):
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


class GrpoKlConfig(KlConfig):
    """GRPO's own KL is `{coefficient: 0.04, estimator: k3}`; 0 leaves out the reference's pass altogether."""

    coefficient: NotNegative = 0.04


class GrpoConfig(Strict):
    """GRPO as Dr. GRPO (`rlmt-grape` eq. 13-14), with a KL to the reference. The first GRPO's biases go by name."""

    has_critic: ClassVar[bool] = False
    compares_a_group: ClassVar[bool] = True
    name: Literal["grpo"]
    updates_per_step: Positive = 1
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    aggregation: Literal["tokens", "samples", "sum_over_samples"] = "tokens"
    """tokens: the mean over all tokens. sum_over_samples: eq. 14. samples: the first GRPO's 1/length."""
    scale_by_std: bool = False
    """Divide a group's advantages by the std of its rewards, as the first GRPO does."""
    kl: GrpoKlConfig = GrpoKlConfig()


class SftConfig(Strict):
    """Fine-tuning on demonstrations (`rlmt-grape` eq. 1-2): the negative log-likelihood of the answers."""

    has_critic: ClassVar[bool] = False
    compares_a_group: ClassVar[bool] = False
    name: Literal["sft"]
    aggregation: Literal["tokens", "samples", "sum_over_samples"] = "tokens"


MethodConfig = Annotated[ActorCriticConfig | GrpoConfig | SftConfig, Field(discriminator="name")]


class OptimizerConfig(Strict):
    """AdamW, one for the actor and one for the critic where there is one, each with its own gradient clipping."""

    actor_lr: Annotated[float, Field(gt=0)] = 1e-5
    critic_lr: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: NotNegative = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Config(Strict):
    """A recipe, whole."""

    recipe: str = "custom"
    about: str = ""
    method: MethodConfig
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parent: ParentConfig | None = None
    """Who answers the prompts. None: the column `answer`, recorded before."""
    reward: RewardConfig
    """`sft` needs none: then held-out completions are scored by `binary`."""
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Positive = 100
    prompts_per_step: Positive = 16
    group_size: Positive = 1
    max_new_tokens: Positive = 16
    microbatch_tokens: Positive | Literal["auto"] = "auto"
    """Tokens that pass through the model together: bounds memory, and changes nothing but rounding. auto: found from
    the memory that is free when the run starts, and kept in the run's config."""
    eval_every: Annotated[int, Field(ge=0)] = 10
    """Greedy evaluation on the held-out part every so many steps, at the start and at the end; 0: never."""
    save_every: Annotated[int, Field(ge=0)] = 50
    """A checkpoint every so many steps, and at the end; 0: at the end only."""
    keep_last: Positive = 2
    successive_kl_every: Annotated[int, Field(ge=0)] = 1
    """How often KL(π₀ ‖ π₁) after a step's updates is measured (it costs a pass); 0: never."""

    @property
    def tokens_at_once(self) -> int:
        return DEFAULT_MICROBATCH_TOKENS if self.microbatch_tokens == "auto" else self.microbatch_tokens

    @model_validator(mode="after")
    def what_is_adapted_to_is_measured(self) -> "Config":
        kl = getattr(self.method, "kl", None)
        if kl and kl.adaptive and kl.against == "previous" and self.successive_kl_every != 1:
            raise ValueError("an adaptive KL against the previous policy needs `successive_kl_every: 1`")
        return self

    @model_validator(mode="before")
    @classmethod
    def demonstrations_need_no_reward(cls, given: Any) -> Any:
        """Without one, the held-out completions of `sft` are scored by the checker."""
        if not isinstance(given, Mapping) or given.get("reward") is not None:
            return given
        method = given.get("method")
        name = method.get("name") if isinstance(method, Mapping) else getattr(method, "name", None)
        return {**given, "reward": {"kind": "binary"}} if name == "sft" else given

    @model_validator(mode="after")
    def sft_samples_nothing(self) -> "Config":
        if self.method.name == "sft":
            for key, default in (("group_size", 1), ("sampling", SamplingConfig())):
                if getattr(self, key) != default:
                    raise ValueError(f"`{key}` has no effect with `method: sft`, which samples nothing: leave it out")
        return self

    @model_validator(mode="after")
    def a_group_can_be_compared(self) -> "Config":
        if self.method.compares_a_group and self.group_size == 1:
            raise ValueError(
                f"`method: {self.method.name}` compares the samples of a prompt with each other: "
                "set `group_size` to 2 or more (8 is usual)"
            )
        return self

    @model_validator(mode="after")
    def critic_lr_has_an_effect(self) -> "Config":
        if not self.method.has_critic and "critic_lr" in self.optimizer.model_fields_set:
            raise ValueError(f"`optimizer.critic_lr` has no effect with `method: {self.method.name}`: it has no critic")
        return self

    @model_serializer(mode="wrap")
    def without_inert_critic_lr(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written can be read again."""
        written = dump(self)
        if not self.method.has_critic:
            written.get("optimizer", {}).pop("critic_lr", None)
        return written
