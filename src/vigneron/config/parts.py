"""The config sections that all methods share: model, data, parent, sampling, optimizer."""

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from vigneron.config.values import STORED, NotNegative, Positive, Share, Strict, Url, as_before, template_columns

Files = list[str]
CHECKER_NAMES = (
    "equality",
    "strict_equality",
    "inclusion",
    "in_order",
    "last_line",
    "final_number",
    "sentiment_inversion",
    "maze_walk",
    "judge_right",
    "nim_optimal",
)


TASK_PARTS = ("held_out", "tuning")
"""Parts of a built-in task that a run can be evaluated on."""


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"should be one of auto, cpu, mps, cuda, cuda:N, not {name!r}")
    return name


def _known_checker(name: str) -> str:
    if name not in CHECKER_NAMES and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ValueError(f"should be one of {', '.join(CHECKER_NAMES)}, or module:function, not {name!r}")
    return name


def _iso_date(given: Any) -> str:
    """A date as text; YAML reads an unquoted one as a date."""
    try:
        return date.fromisoformat(str(given)).isoformat()
    except ValueError:
        raise ValueError(f"should be a date such as 2026-11-30, not {given!r}") from None


TemplateArgument = StrictBool | StrictInt | StrictFloat | StrictStr | None
"""A value that can be written into a template."""

TEMPLATE_NAMES = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception")
"""Names of a chat template that are not arguments."""


class LoraConfig(Strict):
    """A LoRA adapter, trained instead of all weights."""

    rank: Positive = 16
    """Rank of the adapter's matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The adapter's output is scaled by alpha / rank."""
    targets: str | list[str] = "all-linear"
    """Modules with an adapter: `all-linear`, or names as in PEFT's `target_modules`."""


class ModelConfig(Strict):
    """The model that is trained."""

    name: str = "smollm2-135m"
    """Hub id, folder, run by its folder or name (its newest checkpoint), or `smollm2-135m`, which is bundled."""
    device: Annotated[str, AfterValidator(_known_device)] = "auto"
    """`auto` (CUDA, MPS or CPU), `cpu`, `mps`, `cuda` or `cuda:N`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype. auto: bfloat16 on a GPU that supports it."""
    weights: Literal["auto", "float32", "bfloat16", "4bit"] = "auto"
    """How weights are held. auto: trained ones in float32, frozen matrices and embeddings in bfloat16 if that is the
    compute dtype and rounds none of them. float32: all. bfloat16: all matrices and embeddings, rounded if need be;
    trained ones are updated with stochastic rounding; adapters stay float32. 4bit: the linear layers under `lora` in
    NF4 with double quantisation, by bitsandbytes (`pip install 'vigneron[quant]'`)."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """GPU memory that the run may take, its CUDA context included, in GB of 2³⁰ bytes, as everywhere for memory. null:
    all of it."""
    cache_gb: Annotated[float, Field(gt=0)] | None = None
    """GPU memory for keys and values while completions are sampled, in GB of 2³⁰ bytes; the update has it back. One
    sample's are the least. null: what is free, which is found at the run's start."""
    chat: Literal["auto", "minted"] = "auto"
    """Chat template. auto: the model's own. minted: two new tokens, one before each user turn and one before each
    assistant turn; not with `lora`."""
    chat_template_kwargs: dict[str, TemplateArgument] = Field(default_factory=dict)
    """Arguments of the chat template, as `{enable_thinking: false}`, in training, evaluation and chat. The saved
    model's template has them as defaults."""
    chat_date: Annotated[str, BeforeValidator(_iso_date)] | None = None
    """The date that templates write as today's, as 2026-11-30. null: the date of the run's start."""
    lora: LoraConfig | None = None
    """Train a LoRA adapter; the reference is then the model with the adapter off. null: all weights are trained."""
    offload_reference: bool = False
    """Keep the reference's weights in host memory and copy them to the GPU for its pass in each step: the same results,
    slower. With an exact KL the head stays on the GPU. Not with `lora`, whose reference is the base itself."""
    activation_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: less memory, a third more time. auto: on a GPU where fewer than 4,096
    tokens fit into a pass otherwise, which is found at the run's start."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile for layers and losses of models that our own kernels do not cover, on CUDA with Triton: adds half a
    minute or more to the first run of a model's shape; later ones find the code in the cache folder (VIGNERON_CACHE).
    auto: for runs of 200 steps or more."""
    graphs: bool = True
    """Replay passes of repeated shapes as CUDA graphs, on CUDA; not with activation checkpointing. Set to false at the
    start of a run whose passes are limited by memory: graphs keep theirs."""
    allow_pickle: bool = False
    """Load weights from pickle files, which can execute code. Otherwise only safetensors."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository, as in transformers."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def names_of_arguments(cls, given: dict[str, TemplateArgument]) -> dict[str, TemplateArgument]:
        for name in given:
            if not re.fullmatch(r"[a-z_]\w*", name, re.IGNORECASE | re.ASCII) or name in TEMPLATE_NAMES:
                raise ValueError(f"{name!r} is not the name of an argument of chat templates")
        return given

    @model_validator(mode="after")
    def minted_tokens_are_trained(self) -> "ModelConfig":
        if self.chat == "minted" and self.lora is not None:
            raise ValueError(
                "`chat: minted` adds embeddings, which a LoRA adapter neither trains nor saves: remove `lora`, "
                "or first fine-tune without it and then train an adapter on that checkpoint"
            )
        return self

    @model_validator(mode="after")
    def a_copy_can_be_offloaded(self) -> "ModelConfig":
        if self.offload_reference and self.lora is not None:
            raise ValueError(
                "`offload_reference` has no effect with `lora`: the reference is the base with the adapter off, and no "
                "copy; leave it out"
            )
        return self

    @model_validator(mode="after")
    def weights_can_be_held(self) -> "ModelConfig":
        if self.weights == "4bit" and self.lora is None:
            raise ValueError("`weights: 4bit` trains only through an adapter: set `lora`, as `lora: {rank: 16}`")
        if self.weights == "bfloat16" and self.dtype == "float32":
            raise ValueError("`weights: bfloat16` with `dtype: float32` would save nothing: leave out one of them")
        return self


class DataConfig(Strict):
    """The dataset: a built-in `task`, or files, `train` and `held_out`."""

    task: str | None = None
    """Built-in task: `antonyms`, `categories`, `colors`, `copying`, `forms`, `instructions`, `ladder`, `ladder-steps`,
    `opposites` (`opposites-1`, `-2` or `-4` for one level), `rubric`, `sentiment` or `sums`; for environments `guess-8`
    (`-16`, `-32`), `maze-4` (`-5`, `-6`), `nim`, `nim-positions`, `sum-lists` and `sums-tool`, each with `-warmup` for
    SFT on plays."""
    train: str | Files | None = None
    """A .jsonl, .csv, .tsv, .parquet, .json, .jsonl.gz or .csv.gz file, a folder of `datasets.save_to_disk`, a hub
    dataset as `hf:org/name`, a pattern such as `data/*.parquet`, or a list of these; in one of TRL's formats: `prompt`,
    with a reference `answer` if the reward needs one; `prompt` and `completion`; `messages`; preference pairs `prompt`,
    `chosen` and `rejected`; or solutions `prompt`, `completion` (or `completions`, a list of steps) and `labels`."""
    held_out: str | Files | None = None
    """Evaluation data, in the same format. For a built-in task: `held_out` (the default), or `tuning`, which is for
    choosing hyperparameters."""
    config: str | None = None
    """Configuration of a hub dataset, as in `load_dataset(path, name)`. null: its default."""
    split: str | None = None
    """Split of a hub dataset or of a folder of `save_to_disk` that is trained on, as `train` or `train[:90%]`. null:
    `train` on the hub."""
    held_out_split: str | None = None
    """Split that `held_out` is; without `held_out`, one of the same dataset as `train`."""
    columns: dict[str, str] | None = None
    """Columns by name: `{prompt: question}` reads the column `question` as `prompt`. Others keep their names."""
    template: str | None = None
    """Prompt template over the row's columns, as in `The opposite of '{word}' is`. null: the task's, or the column
    `prompt`."""
    chat: bool = False
    """Whether a prompt that is a text becomes a user's message, which the model's chat template writes: for instruct
    models on datasets of plain questions. false: the model continues the text."""
    space_pairs: bool = False
    """Whether a space is put between a text as `prompt` and a text of a pair that begins with none, as earlier versions
    did. false: it follows directly."""
    checker: Annotated[str, AfterValidator(_known_checker)] | None = None
    """Decides whether a completion is correct: `equality` (after normalisation), `strict_equality` (without surrounding
    space and case alone), `inclusion` (of the answer, whatever stands around it), `in_order` (of the words, whatever
    stands between them), `last_line` (of the last lines), `final_number` (of the number after `####`, as in GSM8K, or
    of the last number), `sentiment_inversion`, `maze_walk` (whether the moves reach the goal), `judge_right` (whether
    the judge of a debate is), `nim_optimal` (whether the first move keeps the game's value), or `module:function`, a
    reward function that returns 0 or 1. null: the task's own, or `equality`."""

    @model_validator(mode="before")
    @classmethod
    def without_newer_defaults(cls, given: Any, info: ValidationInfo) -> Any:
        return as_before(given, info, space_pairs=True)

    @model_validator(mode="after")
    def one_source(self) -> "DataConfig":
        if [] in (self.train, self.held_out):
            raise ValueError("`train` and `held_out` need at least one file: an empty list names none")
        if (self.task is None) == (self.train is None):
            raise ValueError("set either `task` or `train`")
        if self.task is not None and self.held_out not in (None, *TASK_PARTS):
            raise ValueError(
                f"the task '{self.task}' has its own data: `held_out` should be one of {', '.join(TASK_PARTS)}"
            )
        own = [key for key in ("config", "split", "held_out_split", "columns", "chat") if getattr(self, key)]
        if self.task is not None and own:
            raise ValueError(f"`{own[0]}` has no effect on the built-in task '{self.task}': remove it")
        given = self.held_out if isinstance(self.held_out, list) else [self.held_out or ""]
        if any(name.startswith("hf:") for name in given) and self.held_out_split is None:
            raise ValueError("`held_out` is a hub dataset: set `held_out_split`, such as `test`")
        if self.held_out is None and self.held_out_split is not None and self.held_out_split == (self.split or "train"):
            raise ValueError("`held_out_split` is the split that is trained on: name another")
        if self.columns is not None and len(set(self.columns.values())) < len(self.columns):
            raise ValueError("`columns` reads one column under two names: remove one")
        return self


class ModelParentConfig(Strict):
    """A parent model (PGSRM's teacher), queried once per prompt with greedy decoding; its answers are cached."""

    model: str
    """Name of the model."""
    instruction: str | None = None
    """System message. null: the task's, if it has one."""
    input: str | None = None
    """Template of the user message over the row's columns, as in `{first} + {second} =`. null: the task's, or the
    prompt."""
    reads: Literal["json", "text"] | None = None
    """Format of the reply. json: the answer is the value of `OUTPUT` in a JSON object. null: the task's, or `text`."""
    max_tokens: Positive = 64
    """Length limit of an answer."""


class EndpointParentConfig(ModelParentConfig):
    """A parent model behind an OpenAI-compatible endpoint. The API key is read from OPENAI_API_KEY and never saved."""

    kind: Literal["endpoint"]
    url: Url | None = None
    """Base URL. null: OPENAI_BASE_URL, or OpenAI's."""
    concurrency: Annotated[int, Field(gt=0, le=256)] = 8
    """Requests in flight."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Timeout of one request, in seconds; a prompt with all its retries takes five minutes at most."""
    retries: Annotated[int, Field(ge=0, le=20)] = 5
    """Retries of a failed request."""
    missing_limit: Share = 0.05
    """Prompts without an answer are left out; if their share exceeds this, the run does not start."""


class LocalParentConfig(ModelParentConfig):
    """A parent model on this machine: a transformers model by hub id, folder or bundled name."""

    kind: Literal["local"]
    missing_limit: Share = 0.05
    """Prompts without an answer are left out; if their share exceeds this, the run does not start."""


ParentConfig = Annotated[EndpointParentConfig | LocalParentConfig, Field(discriminator="kind")]


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _usable_stops(stop: list[str]) -> list[str]:
    for string in stop:
        if not string:
            raise ValueError("an empty string would end every completion: remove it")
        if re.fullmatch(r"(\\[nrt])+", string):
            raise ValueError(f"'{string}' is a backslash and a letter: YAML needs double quotes, as in \"{string}\"")
        if "\ufffd" in string:
            raise ValueError(f"{string!r} contains U+FFFD, which stands for broken characters: remove it")
        if stop.count(string) > 1:
            raise ValueError(f"{string!r} is listed twice: remove one")
        if within := next((other for other in stop if other != string and other in string), None):
            raise ValueError(f"{string!r} has no effect, because it contains {within!r}: remove it")
    return stop


def _has_prompt(template: str, info: ValidationInfo) -> str:
    if (info.context or {}).get(STORED):
        return template
    columns = template_columns(template)
    if "prompt" not in columns:
        raise ValueError(
            "has no {prompt}, so the model would not see the row's prompt: add it, as in '{rules} {prompt}'"
        )
    if "" in columns:
        raise ValueError("has {} without a column's name: write one, as in {prompt}")
    return template


class SamplingConfig(Strict):
    """How completions are sampled. Log-probs are always those of the distribution sampled from."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from the k most likely tokens; 0: from all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: the smallest set of tokens with this total probability."""
    mask_truncated: bool = False
    """Do not train on completions that were cut by `max_new_tokens`."""
    stop: Annotated[list[str], BeforeValidator(_as_list), AfterValidator(_usable_stops)] = Field(default_factory=list)
    """Strings that end a completion, as `["\\n"]`; one string needs no list. The token that completes one is the last
    that is trained on, and the text contains the string. Evaluation and `chat` use them too."""
    prompt: Annotated[str, AfterValidator(_has_prompt)] | None = None
    """Template of the prompt that completions are drawn from, over the row's columns, as `{rules} {prompt}`. They are
    trained after the row's own prompt, and evaluation uses that one (deliberative alignment). null: the same prompt."""


class OptimizerConfig(Strict):
    """AdamW for the actor (the policy) and another for the critic, if there is one; each clips its own gradients."""

    actor_lr: Annotated[float, Field(gt=0)] = 1e-5
    """Learning rate of the trained model; an error with TRPO's constraint, which has none."""
    critic_lr: Annotated[float, Field(gt=0)] = 1e-4
    """Learning rate of the critic, or of GAD's discriminator; an error with methods that have neither."""
    weight_decay: NotNegative = 0.0
    """AdamW's weight decay."""
    kind: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit: AdamW's two moments take 2 bytes per parameter instead of 8, and the steps are less exact."""
    offload: bool = False
    """Keep the moments in host memory and copy them to the GPU part by part in each update: the same steps, slower."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up; linear and cosine decay to 0 over the run's steps."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
