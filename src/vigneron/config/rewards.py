"""The kinds of rewards."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.judges import JudgeConfig
from vigneron.config.values import NotNegative, Positive, Share, Strict, Url, dotted_path


def is_api_embedder(name: str) -> bool:
    return name.startswith(("text-embedding-", "api:"))


class GuardsConfig(Strict):
    """Guards against reward hacking; all off by default."""

    input_weight: NotNegative = 0.0
    """Weight of the similarity to the input, which is subtracted from the similarity to the reference answer: against
    copying the prompt."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """A completion longer than this multiple of the reference answer's words gets reward 0."""
    max_repetition: Share | None = None
    """A completion with a larger share of repeated words gets reward 0."""
    second_embedder: str | None = None
    """A second embedder; the smaller of the two rewards is used."""


class OverlongConfig(Strict):
    """DAPO's soft penalty of long completions: from 0 to −`penalty` over the last `buffer` tokens before
    `max_new_tokens`."""

    buffer: Positive
    """Tokens before `max_new_tokens` where the penalty begins."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """The penalty at `max_new_tokens`."""


class RewardOptions(Strict):
    """What all rewards have."""

    kind: str
    missing_limit: Share = 0.05
    """The run stops if a larger share of all rewards so far is missing, or all rewards of a step."""
    sees: Literal["completion", "answer"] = "completion"
    """answer: reward and checker read only what follows the last `delimiter`, nothing if it does not occur, and get no
    `completion_ids`. For models that think first."""
    delimiter: Annotated[str, Field(min_length=1)] = "</think>"
    """Where the answer begins, with `sees: answer`."""
    overlong: OverlongConfig | None = None
    """Soft penalty of long completions, added to the reward."""

    @property
    def smallest_group(self) -> int:
        """Samples of a prompt that it compares."""
        return 1

    @property
    def may_be_win_rate(self) -> bool:
        """Whether it can be a share of comparisons won; values of a user's function are checked during the run."""
        return False

    @property
    def parts(self) -> "Sequence[RewardOptions]":
        """The rewards that it is made of: itself, or those that it combines."""
        return (self,)

    @model_validator(mode="after")
    def delimiter_has_an_effect(self) -> "RewardOptions":
        if self.sees == "completion" and self.delimiter != "</think>":
            raise ValueError("`delimiter` has no effect without `sees: answer`")
        return self


class SemanticRewardConfig(RewardOptions):
    """PGSRM's reward: similarity between the embeddings of the completion and of the parent's answer."""

    kind: Literal["semantic"]
    embedder: str = "lexical"
    """`lexical`, `wordllama`, `minilm`, a Numberbatch file, a sentence-transformers folder or hub id, an OpenAI
    `text-embedding-…`, or `api:NAME` for any OpenAI-compatible endpoint."""
    url: Url | None = None
    """Base URL of an API embedder. null: OPENAI_BASE_URL, or OpenAI's."""
    guards: GuardsConfig = GuardsConfig()
    alpha: Annotated[float, Field(ge=1)] = 4.0
    """Exponent that sharpens the similarity; an error with `form: euclidean`."""
    form: Literal["clip", "shift", "euclidean"] = "clip"
    """clip: max(0, cosine)^α. shift: ((1 + cosine) / 2)^α. euclidean: 1 − the distance of the unit vectors."""
    clean: Literal["letters", "none"] = "letters"
    """letters: embed lowercased text with everything but letters removed, as PGSRM's released code does."""

    @model_validator(mode="after")
    def url_has_an_effect(self) -> "SemanticRewardConfig":
        embedders = (self.embedder, self.guards.second_embedder)
        if self.url is not None and not any(name and is_api_embedder(name) for name in embedders):
            raise ValueError(
                f"`url` has no effect with `embedder: {self.embedder}`, which is not an API: "
                "remove it, or set `embedder: api:NAME`"
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
                "`guards` cannot be used with `form: euclidean`: its rewards can be negative, and a guard's 0 would be "
                "an improvement"
            )
        return self

    @model_serializer(mode="wrap")
    def without_inert_alpha(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the key that would be an error when read again."""
        return {k: v for k, v in dump(self).items() if k != "alpha" or self.form != "euclidean"}


class BinaryRewardConfig(RewardOptions):
    """1 if `data.checker` accepts the completion, else 0."""

    kind: Literal["binary"]


class PythonRewardConfig(RewardOptions):
    """Your own reward function, with TRL's signature."""

    kind: Literal["python"]
    function: Annotated[str, AfterValidator(dotted_path)]
    """Import path of the function."""

    @property
    def may_be_win_rate(self) -> bool:
        return True


class ModelRewardConfig(RewardOptions):
    """The score of a reward model for the prompt and the completion."""

    kind: Literal["model"]
    model: str
    """Hub id or folder of a sequence-classification model with one label, or the folder of a run that trained one (its
    newest checkpoint)."""


class PreferenceRewardConfig(RewardOptions):
    """A preference model compares the completion with the others of its group, in both orders."""

    kind: Literal["preference"]
    model: str
    """Folder of a run that trained a preference model, or of such a model."""
    ranking: Literal["win_rate", "tournament"] = "win_rate"
    """win_rate: mean probability of being preferred to each of the others, G (G − 1) forward passes. tournament: share
    of rounds won in a knock-out, 2 (G − 1) passes."""

    @property
    def smallest_group(self) -> int:
        return 2

    @property
    def may_be_win_rate(self) -> bool:
        return self.ranking == "win_rate"


class ProcessRewardConfig(RewardOptions):
    """A process model's probabilities that each step is right, combined."""

    kind: Literal["process"]
    model: str
    """Folder of a run of `process_model`, or of such a model."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What stands between steps. null: what the model was trained with."""
    combine: Literal["min", "last", "product", "mean"] = "min"
    """Reward of a completion from the probabilities of its steps."""
    rewards_at: Literal["end", "steps"] = "end"
    """end: the reward is on the last token. steps: at each step's last token, how much the step changes the combined
    probability: they sum to the same reward. For PPO with `advantage: gae`."""
    shape: Literal["none", "pspo", "pspo_released"] = "none"
    """PSPO's rewards s·f(s, n), where s is the geometric mean over n steps. pspo: the paper's Weibull of n, which is
    bounded. pspo_released: that of the released code, which grows without bound in n. Instead of `combine`."""

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "ProcessRewardConfig":
        for key in ("combine", "rewards_at"):
            if self.shape != "none" and key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `shape: {self.shape}`")
        if self.rewards_at == "steps" and self.sees == "answer":
            raise ValueError("`rewards_at: steps` needs the whole completion: leave out `sees: answer`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        inert = ("combine", "rewards_at") if self.shape != "none" else ()
        return {k: v for k, v in dump(self).items() if k not in inert}


class RubricRewardConfig(RewardOptions):
    """GRAPE's reward (`rlmt-grape` eq. 15): the scores of a rubric's items, weighted by confidence."""

    kind: Literal["rubric"]
    file: str
    """The rubric: a .yaml or .json file, or the name of a built-in one. The run works on its own copy, which can be
    edited during the run."""
    judge: JudgeConfig | None = None
    """The judge model for items with flow `judge` or `verify`."""
    weigh_by_confidence: bool = True
    """false: all confidences are 1, and the reward is the weighted sum of the scores."""
    normalise: bool = False
    """Divide by Σ ω φ̄, so that a perfect answer gets 1."""
    held_out_file: str | None = None
    """A second rubric that scores held-out answers, in addition to the one trained on."""
    held_out_judge: JudgeConfig | None = None
    """Judge for `held_out_file`. null: the same as `judge`."""
    missing_limit: Share = 0.05
    """The run stops if a larger share of scores is missing."""


PartConfig = Annotated[
    SemanticRewardConfig
    | BinaryRewardConfig
    | PythonRewardConfig
    | ModelRewardConfig
    | PreferenceRewardConfig
    | ProcessRewardConfig,
    Field(discriminator="kind"),
]


class CombinedRewardConfig(RewardOptions):
    """Several rewards in one. A completion that one of them could not score has no reward."""

    kind: Literal["combined"]
    rewards: Annotated[list[PartConfig], Field(min_length=2)]
    """The rewards; each is logged by itself."""
    weights: list[float] | None = None
    """A weight for each. null: all 1."""
    combine: Literal["sum", "min", "normalised"] = "sum"
    """sum: the weighted sum. min: the smallest weighted reward. normalised: each reward minus its group's mean, divided
    by its std, then summed (GDPO)."""

    @property
    def smallest_group(self) -> int:
        return max(2 if self.combine == "normalised" else 1, *(part.smallest_group for part in self.rewards))

    @property
    def parts(self) -> Sequence[RewardOptions]:
        return self.rewards

    @model_validator(mode="after")
    def weights_fit(self) -> "CombinedRewardConfig":
        if self.weights is not None and len(self.weights) != len(self.rewards):
            raise ValueError(f"`weights` has {len(self.weights)} numbers for {len(self.rewards)} rewards")
        return self

    @model_validator(mode="after")
    def parts_have_no_options_of_the_whole(self) -> "CombinedRewardConfig":
        for key in ("missing_limit", "sees", "overlong"):
            if any(key in part.model_fields_set for part in self.rewards):
                raise ValueError(f"`{key}` belongs to the combined reward, not to one of its parts")
        return self

    @model_serializer(mode="wrap")
    def without_options_of_the_whole(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        written = dump(self)
        for part in written.get("rewards", []):
            for key in ("missing_limit", "sees", "delimiter", "overlong"):
                part.pop(key, None)
        return written


RewardConfig = Annotated[
    SemanticRewardConfig
    | BinaryRewardConfig
    | PythonRewardConfig
    | ModelRewardConfig
    | PreferenceRewardConfig
    | ProcessRewardConfig
    | RubricRewardConfig
    | CombinedRewardConfig,
    Field(discriminator="kind"),
]


def embeds_here(reward: Any) -> bool:
    """Whether the reward may use a local embedder; with a rubric, its file decides."""
    if isinstance(reward, CombinedRewardConfig):
        return any(embeds_here(part) for part in reward.rewards)
    if not isinstance(reward, SemanticRewardConfig):
        return isinstance(reward, RubricRewardConfig)
    return any(name and not is_api_embedder(name) for name in (reward.embedder, reward.guards.second_embedder))


def judges_here(reward: Any) -> bool:
    judges = (reward.judge, reward.held_out_judge) if isinstance(reward, RubricRewardConfig) else ()
    return any(judge is not None and judge.kind == "local" for judge in judges)
