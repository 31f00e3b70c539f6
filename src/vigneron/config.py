"""The run's config: a recipe read from YAML, checked whole before anything is loaded.

Light on purpose: no torch here, so that a bad recipe is refused at once.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from vigneron.errors import UserError, did_you_mean

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class Strict(BaseModel):
    """Unknown keys are refused, and a text is not a number; neither is infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LoraConfig(Strict):
    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: str | list[str] = "all-linear"


class ModelConfig(Strict):
    name: str = "smollm2-135m"
    """A hub id, a folder, or `smollm2-135m`, which comes with the installation."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What matrix products run in; weights are float32 always."""
    lora: LoraConfig | None = None
    activation_checkpointing: bool = False
    allow_pickle: bool = False
    trust_remote_code: bool = False


class DataConfig(Strict):
    task: str | None = None
    """A built-in task, or give `train`."""
    train: str | None = None
    """A .jsonl or .csv file with a column `prompt`, and `answer` where the reward compares with one."""
    held_out: str | None = None
    """The same, for evaluation; a built-in task brings its own."""
    template: str | None = None
    """Makes the prompt of other columns, as in `The opposite of '{word}' is `."""

    @model_validator(mode="after")
    def one_source(self) -> "DataConfig":
        if (self.task is None) == (self.train is None):
            raise ValueError("give either `task` or `train`")
        if self.task is not None and self.held_out is not None:
            raise ValueError(f"the task '{self.task}' brings its own held-out part: leave out `held_out`")
        return self


class SamplingConfig(Strict):
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    mask_truncated: bool = False
    """Do not train on completions that the length limit cut."""


class SemanticRewardConfig(Strict):
    """PGSRM's reward."""

    kind: Literal["semantic"]
    embedder: str = "lexical"
    """`lexical`, `wordllama`, `minilm`, a Numberbatch file, or a sentence-transformers folder or hub id."""
    alpha: Annotated[float, Field(ge=1)] = 4.0
    form: Literal["clip", "shift", "euclidean"] = "clip"
    clean: Literal["letters", "none"] = "letters"
    """letters: embed lowercased text with everything but letters removed, as the released code does."""
    missing_limit: Share = 0.05

    @model_validator(mode="after")
    def alpha_has_an_effect(self) -> "SemanticRewardConfig":
        if self.form == "euclidean" and "alpha" in self.model_fields_set:
            raise ValueError("`alpha` has no effect with `form: euclidean`")
        return self

    @model_serializer(mode="wrap")
    def without_inert_alpha(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written can be read again."""
        return {k: v for k, v in dump(self).items() if k != "alpha" or self.form != "euclidean"}


class ExactRewardConfig(Strict):
    """1 for the parent's answer after normalisation, else 0."""

    kind: Literal["exact"]
    missing_limit: Share = 0.05


class PythonRewardConfig(Strict):
    """Your own function of TRL's signature."""

    kind: Literal["python"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """`module:function`."""
    missing_limit: Share = 0.05


RewardConfig = Annotated[SemanticRewardConfig | ExactRewardConfig | PythonRewardConfig, Field(discriminator="kind")]


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


MethodConfig = ActorCriticConfig


class OptimizerConfig(Strict):
    """AdamW, one for the actor and one for the critic, each with its own gradient clipping."""

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
    reward: RewardConfig
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Positive = 100
    prompts_per_step: Positive = 16
    group_size: Positive = 1
    max_new_tokens: Positive = 16
    microbatch_tokens: Positive = 8192
    """Bounds memory, and changes nothing but rounding."""
    eval_every: Annotated[int, Field(ge=0)] = 10
    """Greedy evaluation on the held-out part every so many steps, at the start and at the end; 0: never."""
    save_every: Annotated[int, Field(ge=0)] = 50
    """A checkpoint every so many steps, and at the end; 0: at the end only."""
    keep_last: Positive = 2
    successive_kl_every: Annotated[int, Field(ge=0)] = 1
    """How often KL(π₀ ‖ π₁) after a step's updates is measured (it costs a pass); 0: never."""

    @model_validator(mode="after")
    def what_is_adapted_to_is_measured(self) -> "Config":
        kl = self.method.kl
        if kl.adaptive and kl.against == "previous" and self.successive_kl_every != 1:
            raise ValueError("an adaptive KL against the previous policy needs `successive_kl_every: 1`")
        return self


# ---------------------------------------------------------------------------------------------- reading


class _Loader(yaml.SafeLoader):
    """Safe YAML, with YAML 1.2's numbers (`1e-5` is one). A key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: the text '1e-5' is quoted."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
        list("-+0123456789."),
    )
    # The resolver above also matches whole numbers: let the integer rule come first.
    for _rules in _side.yaml_implicit_resolvers.values():
        _rules.sort(key=lambda rule: rule[0] != "tag:yaml.org,2002:int")


def parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that is none
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{line}: not valid YAML: {problem}") from error


def recipe_names() -> list[str]:
    folder = resources.files("vigneron") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a built-in recipe, or of a file."""
    if name in recipe_names():
        return (resources.files("vigneron") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise UserError(f"cannot read the recipe '{name}': {reason}") from error
    raise UserError(f"unknown recipe '{name}'{did_you_mean(name, recipe_names())}; a .yaml file also does")


def load_config(recipe: str, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None) -> Config:
    """A recipe by name or file, with `key=value` overrides and top-level `keys`, checked."""
    given = parse_yaml(recipe_text(recipe), recipe)
    if not isinstance(given, dict):
        raise UserError(f"{recipe}: a recipe is a mapping of keys to values")
    for override in overrides:
        given = with_override(given, override)
    given = {**given, **(keys or {})}
    return check_config({"recipe": Path(recipe).stem, **given}, recipe)


def with_override(given: Mapping[str, Any], override: str) -> dict[str, Any]:
    """`a.b=value` set in a copy of nested mappings."""
    key, separator, value = override.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise UserError(f"'{override}' is not of the form key=value")
    parsed = parse_yaml(value, override)
    return _set(given, path, parsed)


def _set(mapping: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    mapping = dict(mapping) if isinstance(mapping, Mapping) else {}
    head, *rest = path
    mapping[head] = _set(mapping.get(head), rest, value) if rest else value
    return mapping


def check_config(given: Mapping[str, Any], where: str) -> Config:
    """Every error at once, one line each, with the key's path. `reward: exact` is short for its `kind`, and so on."""
    short = {"reward": "kind", "method": "name", "model": "name"}
    if isinstance(given, Mapping):
        given = {k: {short[k]: v} if k in short and isinstance(v, str) else v for k, v in given.items()}
    try:
        return Config.model_validate(given)
    except ValidationError as errors:
        lines = [_describe(error, given) for error in errors.errors()]
        raise UserError("\n".join(f"{where}: {line}" for line in lines)) from errors


def _describe(error: ErrorDetails, given: Any) -> str:
    path = _path_in(error, given)
    key = ".".join(str(part) for part in path) or "the recipe"
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}'{did_you_mean(str(path[-1]), _known_keys(path[:-1], given))}"
    if error["type"] == "missing":
        return f"'{key}' is missing"
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        given_kind = error["input"].get("kind") if isinstance(error["input"], Mapping) else error["input"]
        kinds = "'semantic', 'exact', 'python'"
        if given_kind is None:
            return f"'{key}.kind' is missing: one of {kinds}"
        return f"{key}.kind: one of {kinds}, not {given_kind!r}"
    message = error["msg"].removeprefix("Value error, ")
    message = re.sub("^(Input|String) should", "should", message)
    shown = error["input"]
    if error["type"] == "value_error" or isinstance(shown, dict | list):
        return f"{key}: {message}"
    return f"{key}: {message}, not {shown!r}"


def _path_in(error: ErrorDetails, given: Any) -> list[int | str]:
    """Pydantic's location without the tags of unions, which are no keys."""
    path: list[int | str] = []
    here = given
    for part in error["loc"]:
        missing = error["type"] == "missing" and part == error["loc"][-1]
        if isinstance(here, Mapping) and (part in here or missing):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part]
        else:
            continue
        path.append(part)
    return path


def _known_keys(path: Sequence[int | str], given: Any) -> list[str]:
    """The keys that a section of the config has."""
    model: type[BaseModel] = Config
    here = given
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
        model = _section_model(model, str(part), here)
    return list(model.model_fields)


def _section_model(model: type[BaseModel], key: str, given: Any) -> type[BaseModel]:
    kinds: dict[str, type[BaseModel]] = {
        "semantic": SemanticRewardConfig,
        "exact": ExactRewardConfig,
        "python": PythonRewardConfig,
    }
    if key == "reward" and isinstance(given, Mapping):
        return kinds.get(str(given.get("kind")), ExactRewardConfig)
    annotation = model.model_fields[key].annotation
    for option in getattr(annotation, "__args__", (annotation,)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return model


def config_yaml(config: Config) -> str:
    """The resolved config, as it is written into the run's folder."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
