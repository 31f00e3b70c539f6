"""The parts of a recipe that every method has: model, data, parent, sampling, optimizer."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from vigneron.config.values import NotNegative, Positive, Share, Strict, Url

CHECKER_NAMES = ("equality", "sentiment_inversion")


TASK_PARTS = ("held_out", "tuning")
"""What a built-in task may be evaluated on."""


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"should be one of auto, cpu, mps, cuda, cuda:N, not {name!r}")
    return name


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
    chat: Literal["auto", "minted"] = "auto"
    """How conversations are written. auto: by the model's own template. minted: with two tokens that are made for it,
    one before a user's turn and one before the model's."""
    lora: LoraConfig | None = None
    activation_checkpointing: bool = False
    compile: bool | Literal["auto"] = "auto"
    """torch.compile for layers and losses, on a CUDA device: takes half a minute at the start. auto: from 200 steps."""
    graphs: bool = True
    """On a CUDA device, passes whose shapes repeat are replayed as CUDA graphs."""
    allow_pickle: bool = False
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def minted_tokens_are_trained(self) -> "ModelConfig":
        if self.chat == "minted" and self.lora is not None:
            raise ValueError(
                "`chat: minted` makes new embeddings, which an adapter neither trains nor keeps: leave out `lora`, "
                "or fine-tune without it first and put the adapter on that checkpoint"
            )
        return self


class DataConfig(Strict):
    task: str | None = None
    """A built-in task, or give `train`."""
    train: str | None = None
    """A .jsonl or .csv file with a column `prompt`, and `answer` where the reward compares with one; or TRL's
    `prompt` and `completion`, or `messages`; or preference pairs, `prompt`, `chosen` and `rejected`."""
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


class OptimizerConfig(Strict):
    """AdamW, one for the actor and one for the critic where there is one, each with its own gradient clipping."""

    actor_lr: Annotated[float, Field(gt=0)] = 1e-5
    critic_lr: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: NotNegative = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
