"""The kinds of reward."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.judges import JudgeConfig
from vigneron.config.values import NotNegative, Share, Strict, Url, dotted_path


def is_api_embedder(name: str) -> bool:
    return name.startswith(("text-embedding-", "api:"))


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
    function: Annotated[str, AfterValidator(dotted_path)]
    """`module:function`."""
    missing_limit: Share = 0.05


class ModelRewardConfig(Strict):
    """A reward model's score of a prompt with its completion."""

    kind: Literal["model"]
    model: str
    """A folder or hub id of a sequence-classification model with one label, or the folder of a run that trained one."""
    missing_limit: Share = 0.05


class PreferenceRewardConfig(Strict):
    """How a completion does against the others of its group, by a preference model that sees both orders."""

    kind: Literal["preference"]
    model: str
    """The folder of a run that trained a preference model, or of such a model."""
    ranking: Literal["win_rate", "tournament"] = "win_rate"
    """win_rate: the mean probability of being better than each of the others, G (G − 1) passes. tournament: the share
    of rounds won of a knock-out, 2 (G − 1) passes."""
    missing_limit: Share = 0.05


class RubricRewardConfig(Strict):
    """GRAPE's reward (`rlmt-grape` eq. 15): a rubric's items, scored and weighted by confidence."""

    kind: Literal["rubric"]
    file: str
    """The rubric: a .yaml or .json file, or the name of one that ships. The run keeps a copy, which may be changed
    while it runs."""
    judge: JudgeConfig | None = None
    """Who scores the items whose flow is `judge` or `verify`."""
    weigh_by_confidence: bool = True
    """false: every confidence counts as 1, and the reward is the weighted sum of the scores."""
    normalise: bool = False
    """Divide by Σ ω φ̄, so that a perfect answer earns 1."""
    held_out_file: str | None = None
    """Another rubric, by which held-out answers are scored beside the one that is trained on."""
    held_out_judge: JudgeConfig | None = None
    """Another judge for that. None: the same."""
    missing_limit: Share = 0.05
    """More than this share of scores missing, and the run stops."""


RewardConfig = Annotated[
    SemanticRewardConfig
    | BinaryRewardConfig
    | PythonRewardConfig
    | ModelRewardConfig
    | PreferenceRewardConfig
    | RubricRewardConfig,
    Field(discriminator="kind"),
]


def embeds_here(reward: Any) -> bool:
    """Whether it may ask an embedder that is no API; a rubric may, its file says."""
    if not isinstance(reward, SemanticRewardConfig):
        return isinstance(reward, RubricRewardConfig)
    return any(name and not is_api_embedder(name) for name in (reward.embedder, reward.guards.second_embedder))


def judges_here(reward: Any) -> bool:
    judges = (reward.judge, reward.held_out_judge) if isinstance(reward, RubricRewardConfig) else ()
    return any(judge is not None and judge.kind == "local" for judge in judges)
