"""What is checked of a recipe before any weights are loaded: by `vigneron train` first, and by `vigneron validate`.

No judge and no parent is asked. Of the user's code, the reward and the checker are called on a row or two;
an environment is imported, and not called.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vigneron.config import Config, GameConfig, PythonEnvironmentConfig
from vigneron.data.prompts import Row, completion_text
from vigneron.environments.build import Environments, build_environments
from vigneron.errors import nearest
from vigneron.files import user_path
from vigneron.policy.bundled import BUNDLED_MODELS, quiet_transformers
from vigneron.policy.model_names import check_model_name, check_tokenizer_files, is_cached, local_tokenizer
from vigneron.policy.token_boundaries import answer_lengths
from vigneron.run_data.load import Data
from vigneron.run_store.folder import run_names
from vigneron.timing import phase
from vigneron.training.setup.quick_checks import quick_checks
from vigneron.training.setup.rendered_rows import check_template, has_conversations, prepare_template

MEASURED_ROWS = 500
"""The first rows of a part whose answers are tokenized."""
NO_TOKENIZER = "the tokenizer is not on this machine, or cannot be read, so the chat template is not checked"


@dataclass(frozen=True)
class Preflight:
    """What was found that is no error, and the tokenizer, if it was needed and is on this machine."""

    notices: tuple[str, ...]
    tokenizer: Any = None
    environments: Environments | None = None
    """Those of the config, where the tokenizer is known and the model is sampled in conversations."""


def preflight(config: Config, data: Data) -> Preflight:
    """All checks. The config is resolved; its data are not answered by a parent yet."""
    with phase("check the recipe"):
        notices, checks = quick_checks(config, data), model_checks(config, data)
        return replace(checks, notices=(*notices, *checks.notices))


def model_checks(config: Config, data: Data) -> Preflight:
    """The checks of the model's name and of texts by its tokenizer. Raises the first error."""
    check_model_name(config.model.name)
    check_tokenizer_files(config.model.name)
    notices = [*name_notices(config.model.name)]
    tokenizer, long = None, list(_long_answers(config, data))
    environment = None if isinstance(config.environment, GameConfig) else config.environment
    talks = has_conversations(data) or environment is not None
    if talks or long:
        model = config.model
        tokenizer = local_tokenizer(model.name, trust_remote_code=model.trust_remote_code, convert=talks)
    if tokenizer is not None:
        notices += length_notices(config, long, tokenizer)
    if talks and tokenizer is None:
        notices.append(NO_TOKENIZER)
        return Preflight(tuple(notices))
    environments = None
    if talks:
        prepare_template(config, tokenizer)
        environments = build_environments(environment, tokenizer)
        notices += [] if environments is None else environments.notices
        check_template(config, data, tokenizer, environments)
    return Preflight(tuple(notices), tokenizer, environments)


def name_notices(name: str) -> Iterator[str]:
    """A model that is not on this machine, while something similar is."""
    if name in BUNDLED_MODELS or user_path(name).exists() or is_cached(name):
        return
    folders = [file.parent.name for file in Path().glob("*/config.json")]
    near = nearest(name, [*BUNDLED_MODELS, *run_names(), *folders])
    if near is not None:
        yield f"model: '{name}' is not on this machine, and is looked up on the hub (did you mean '{near}'?)"


def _long_answers(config: Config, data: Data) -> Iterator[tuple[str, list[str]]]:
    """The parts of the data with an answer of more bytes than `max_new_tokens`, and their answers: a token has at
    least one byte. An answer to an environment may be given in several turns."""
    if isinstance(config.environment, PythonEnvironmentConfig | GameConfig):
        return
    parts: dict[str, Sequence[Row]] = {"held-out": data.held_out}
    if config.method.reads == "prompts":
        parts = {"training": data.train, **parts}
    if config.method.reads == "pairs" or config.method.trains != "policy":
        return
    for part, rows in parts.items():
        first = (rows[index] for index in range(min(MEASURED_ROWS, len(rows))))
        answers = [completion_text(row["answer"]) for row in first if row.get("answer") is not None]
        if any(len(answer.encode()) >= config.max_new_tokens for answer in answers):
            yield part, answers


def length_notices(config: Config, parts: Sequence[tuple[str, list[str]]], tokenizer: Any) -> Iterator[str]:
    """Answers of the data that completions of `max_new_tokens` could not give."""
    for part, answers in parts:
        with quiet_transformers():  # it warns of texts that are longer than the context
            lengths = answer_lengths(tokenizer, answers)
        over = sum(length > config.max_new_tokens for length in lengths)
        if over:
            yield (
                f"max_new_tokens: {config.max_new_tokens} is too short for {over} of {len(answers)} answers in the "
                f"{part} data, of up to {max(lengths)} tokens: completions as long as these are cut"
            )
