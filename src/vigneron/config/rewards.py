"""The kinds of rewards."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from vigneron.config.judges import JudgeConfig
from vigneron.config.values import NotNegative, Positive, Share, Strict, Url, as_before, dotted_path


def is_api_embedder(name: str) -> bool:
    return name.startswith(("text-embedding-", "api:"))


class GuardsConfig(Strict):
    """Guards against reward hacking; all but `max_cut_ratio` are off by default."""

    input_weight: NotNegative = 0.0
    """Weight of the similarity to the input, which is subtracted from the similarity to the reference answer: against
    copying the prompt."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """A completion longer than this multiple of the reference answer's words gets reward 0."""
    max_cut_ratio: Annotated[float, Field(ge=1)] | None = 4.0
    """A completion that `max_new_tokens` cut, and that is longer than this multiple c of the reference answer's words,
    gets R · c / its multiple: against writing on after the answer. null: R."""
    max_repetition: Share | None = None
    """A completion with a larger share of repeated words gets reward 0."""
    second_embedder: str | None = None
    """A second embedder; the smaller of the two rewards is used."""

    @model_validator(mode="before")
    @classmethod
    def without_newer_defaults(cls, given: Any, info: ValidationInfo) -> Any:
        return as_before(given, info, max_cut_ratio=None)


class OverlongConfig(Strict):
    """DAPO's soft penalty of long completions: from 0 to −`penalty` over the last `buffer` tokens before
    `max_new_tokens`; of a conversation, which counts the model's own tokens, before `max_turns` × `max_new_tokens`."""

    buffer: Positive
    """Tokens before `max_new_tokens` (in conversations × `max_turns`) where the penalty begins."""
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


Clean = Literal["words", "letters", "a_to_z", "none"]


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
    """Exponent that sharpens the similarity: with 4 a wrong answer earns next to nothing, with 1 or 2 wrong answers
    differ. An error with `form: euclidean` and `form: contrastive`."""
    form: Literal["clip", "shift", "euclidean", "contrastive"] = "clip"
    """clip: max(0, cosine)^α. shift: ((1 + cosine) / 2)^α. euclidean: 1 − the distance of the unit vectors.
    contrastive: the softmax probability of the own reference answer among itself, the row's own input (or prompt) and
    other rows' answers, so that an echo earns little."""
    negatives: Annotated[int, Field(ge=0)] = 8
    """Other rows' answers that a completion is compared with, with `form: contrastive`. They are drawn by a hash of the
    row's prompt and answer, so a row always has the same ones."""
    temperature: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of the softmax over cosines, with `form: contrastive`."""
    clean: Clean = "words"
    """Texts are lowercased and cleaned before they are embedded. words: words and numbers, separated by spaces.
    letters: everything but letters and spaces is deleted, which joins hyphenated words and cannot
    see numbers. a_to_z: everything but a to z is a space, as in PGSRM's released notebooks: it cannot see numbers, nor
    letters with accents. none: texts are embedded as they are."""

    @model_validator(mode="before")
    @classmethod
    def without_newer_defaults(cls, given: Any, info: ValidationInfo) -> Any:
        return as_before(given, info, clean="letters", guards={})

    @model_validator(mode="after")
    def url_has_an_effect(self) -> "SemanticRewardConfig":
        embedders = (self.embedder, self.guards.second_embedder)
        if self.url is not None and not any(name and is_api_embedder(name) for name in embedders):
            raise ValueError(
                f"`url` has no effect with `embedder: {self.embedder}`, which is not an API: "
                "remove it, or set `embedder: api:NAME`"
            )
        return self

    @property
    def inert(self) -> tuple[str, ...]:
        """Keys without an effect on this form."""
        contrast = () if self.form == "contrastive" else ("negatives", "temperature")
        return (*contrast, *(("alpha",) if self.form in ("euclidean", "contrastive") else ()))

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "SemanticRewardConfig":
        for key in self.inert:
            if key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `form: {self.form}`")
        if self.form == "contrastive" and self.guards.input_weight:
            raise ValueError(
                "`guards.input_weight` has no effect with `form: contrastive`, which compares with the input: remove it"
            )
        return self

    @model_validator(mode="after")
    def guards_need_a_reward_from_zero(self) -> "SemanticRewardConfig":
        allowed = GuardsConfig(second_embedder=self.guards.second_embedder)
        without = allowed.model_copy(update={"max_cut_ratio": None})
        if self.form == "euclidean" and self.guards not in (allowed, without):
            raise ValueError(
                "`guards` cannot be used with `form: euclidean`: its rewards can be negative, and a guard's 0 would be "
                "an improvement"
            )
        return self

    @model_serializer(mode="wrap")
    def without_inert_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that would be errors when read again."""
        return {k: v for k, v in dump(self).items() if k not in self.inert}


class TokenF1RewardConfig(RewardOptions):
    """Token F1: the harmonic mean of precision and recall of the completion's words against the parent's answer's, in
    any order. A dense reward without an embedder."""

    kind: Literal["token_f1"]


class ProbabilityRewardConfig(RewardOptions):
    """RLPR's reward (Yu et al. 2025): the mean probability of the parent's answer's tokens, by the model in training,
    after the prompt and what the completion says before its own answer. Needs no embedder and no check."""

    kind: Literal["probability"]
    answer_after: Annotated[str, Field(min_length=1)] | None = None
    """Text behind which a completion's own answer begins, as `Answer:`; its last occurrence counts, and a completion
    without it gets 0. null: a completion's answer is its last line."""
    by: Literal["policy", "reference"] = "policy"
    """policy: by the model as it is in this step, as in RLPR. reference: by the model at the start of the run."""
    debias: bool = True
    """Subtract the mean probability of the same tokens right after the prompt, and clip at 0: a text earns what it adds
    to the answer's probability."""

    @model_validator(mode="after")
    def reads_the_whole_completion(self) -> "ProbabilityRewardConfig":
        if self.sees == "answer":
            raise ValueError(
                "`kind: probability` reads what is before the answer: set `answer_after` instead of `sees`"
            )
        return self


class BinaryRewardConfig(RewardOptions):
    """1 if `data.checker` accepts the completion, else 0."""

    kind: Literal["binary"]


class PythonRewardConfig(RewardOptions):
    """Your own reward function, with TRL's signature."""

    kind: Literal["python"]
    function: Annotated[str, AfterValidator(dotted_path)]
    """Import path of the function. It is called before a run starts, on a row or two with a group of completions each,
    and again with empty completions."""

    @property
    def may_be_win_rate(self) -> bool:
        return True


class EnvironmentRewardConfig(RewardOptions):
    """What the environment gave for the turns of a conversation, summed."""

    kind: Literal["environment"]


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
    | TokenF1RewardConfig
    | ProbabilityRewardConfig
    | BinaryRewardConfig
    | PythonRewardConfig
    | ModelRewardConfig
    | PreferenceRewardConfig
    | ProcessRewardConfig,
    Field(discriminator="kind"),
]


class CombinedRewardConfig(RewardOptions):
    """Several rewards in one. A completion that one of them could not score has no reward, unless `combine` does not
    need that one for it."""

    kind: Literal["combined"]
    rewards: Annotated[list[PartConfig], Field(min_length=2)]
    """The rewards; each is logged by itself."""
    weights: list[float] | None = None
    """A weight for each. null: all 1."""
    combine: Literal["sum", "min", "normalised", "annealed", "tie_break"] = "sum"
    """sum: the weighted sum. min: the smallest weighted reward. normalised: each reward minus its group's mean, divided
    by its std, then summed (GDPO). Of two rewards, a check and a dense one: annealed: the dense one until a sample of
    the prompt has once been a hit, from then on the check; tie_break: the check, and inside groups whose checked
    rewards are all equal also the dense one, too small to overturn a difference of the check. Held-out completions get
    the check alone with both."""
    hit: float = 1.0
    """The checked reward from which a sample is a hit, with `combine: annealed`."""

    @property
    def smallest_group(self) -> int:
        compares = self.combine in ("normalised", "tie_break")
        return max(2 if compares else 1, *(part.smallest_group for part in self.rewards))

    @property
    def parts(self) -> Sequence[RewardOptions]:
        return self.rewards

    @model_validator(mode="after")
    def weights_fit(self) -> "CombinedRewardConfig":
        if self.weights is not None and len(self.weights) != len(self.rewards):
            raise ValueError(f"`weights` has {len(self.weights)} numbers for {len(self.rewards)} rewards")
        return self

    @model_validator(mode="after")
    def a_check_and_a_dense_reward(self) -> "CombinedRewardConfig":
        if self.combine != "annealed" and "hit" in self.model_fields_set:
            raise ValueError(f"`hit` has no effect with `combine: {self.combine}`")
        if self.combine not in ("annealed", "tie_break"):
            return self
        if len(self.rewards) != 2:
            raise ValueError(
                f"`combine: {self.combine}` takes two rewards, first the check, then the dense one, not "
                f"{len(self.rewards)}"
            )
        if self.weights is not None:
            raise ValueError(f"`weights` has no effect with `combine: {self.combine}`: leave it out")
        first, second = (part.kind for part in self.rewards)
        if first != "binary" and second == "binary":
            raise ValueError(f"`combine: {self.combine}` takes first the check, then the dense reward: swap the two")
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
        if self.combine != "annealed":
            written.pop("hit", None)
        for part in written.get("rewards", []):
            for key in ("missing_limit", "sees", "delimiter", "overlong"):
                part.pop(key, None)
        return written


RewardConfig = Annotated[
    SemanticRewardConfig
    | TokenF1RewardConfig
    | ProbabilityRewardConfig
    | BinaryRewardConfig
    | PythonRewardConfig
    | EnvironmentRewardConfig
    | ModelRewardConfig
    | PreferenceRewardConfig
    | ProcessRewardConfig
    | RubricRewardConfig
    | CombinedRewardConfig,
    Field(discriminator="kind"),
]


def asks_reference(reward: Any) -> bool:
    """Whether a reward is computed by the reference, which the run then needs whatever its method."""
    return any(getattr(part, "by", None) == "reference" for part in reward.parts)


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
