"""What can be checked of a recipe before any weights are loaded: by `vigneron train` first, and by `vigneron validate`.

No judge and no parent is asked. Of the user's code, the reward and the checker are called on two rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.data.prompts import Row, completion_text
from vigneron.errors import nearest
from vigneron.files import user_path
from vigneron.policy.bundled import BUNDLED_MODELS, quiet_transformers
from vigneron.policy.model_names import check_model_name, is_cached, local_tokenizer
from vigneron.policy.token_boundaries import plain_ids
from vigneron.rewards.trial import try_user_functions
from vigneron.run_data.load import Data
from vigneron.run_store.folder import run_names
from vigneron.timing import phase
from vigneron.training.setup.rendered_rows import check_template, has_conversations

MEASURED_ROWS = 500
"""The first rows of a part whose answers are tokenized."""
NO_TOKENIZER = "the tokenizer is not on this machine yet, so the chat template is not checked"

# The usual learning rates for all weights; an adapter takes ten times as much.
SCORER_RATES = (1e-6, 1e-4)
PAIR_RATES = (1e-7, 5e-5)
SUPERVISED_RATES = (1e-6, 2e-4)
POLICY_RATES = (1e-7, 1e-4)
CRITIC_RATES = (1e-7, 1e-2)


@dataclass(frozen=True)
class Preflight:
    """What was found that is no error, and the tokenizer, if it was needed and is on this machine."""

    notices: tuple[str, ...]
    tokenizer: Any = None


def preflight(config: Config, data: Data) -> Preflight:
    """Raise for the first error. The config is resolved; its data are not answered by a parent yet."""
    with phase("check the recipe"):
        check_model_name(config.model.name)
        notices = [*name_notices(config.model.name), *try_user_functions(config, data.train, data.held_out)]
        notices += [*rate_notices(config), *row_notices(config, data)]
        tokenizer, long = None, list(_long_answers(config, data))
        talks = has_conversations(data)
        if talks or long:
            model = config.model
            tokenizer = local_tokenizer(model.name, trust_remote_code=model.trust_remote_code, convert=talks)
        if tokenizer is not None:
            notices += length_notices(config, long, tokenizer)
        if talks and tokenizer is None:
            notices.append(NO_TOKENIZER)
        elif talks:
            check_template(config, data, tokenizer)
        return Preflight(tuple(notices), tokenizer)


def name_notices(name: str) -> Iterator[str]:
    """A model that is not on this machine, while something similar is."""
    if name in BUNDLED_MODELS or user_path(name).exists() or is_cached(name):
        return
    folders = [file.parent.name for file in Path().glob("*/config.json")]
    near = nearest(name, [*BUNDLED_MODELS, *run_names(), *folders])
    if near is not None:
        yield f"model: '{name}' is not on this machine, and is looked up on the hub (did you mean '{near}'?)"


def rate_notices(config: Config) -> Iterator[str]:
    """Learning rates that are far from the usual ones."""
    method, optimizer = config.method, config.optimizer
    if method.steps_by_gradient:
        least, most = usual_rates(config)
        weights = "all weights" if config.model.lora is None else "a LoRA adapter"
        yield from _rate("optimizer.actor_lr", optimizer.actor_lr, least, most, f"`method: {method.name}` on {weights}")
    if method.has_critic:
        yield from _rate("optimizer.critic_lr", optimizer.critic_lr, *CRITIC_RATES, "a critic")


def usual_rates(config: Config) -> tuple[float, float]:
    """The least and the largest usual learning rate of the trained model."""
    if config.method.trains == "scorer":
        least, most = SCORER_RATES
    else:
        least, most = {"pairs": PAIR_RATES, "demonstrations": SUPERVISED_RATES}.get(config.method.reads, POLICY_RATES)
    factor = 1 if config.model.lora is None else 10
    return least * factor, most * factor


def _rate(key: str, given: float, least: float, most: float, of: str) -> Iterator[str]:
    if not least <= given * 1.001 or not given <= most * 1.001:  # 1e-6 × 10 is not quite 1e-5
        word = "high" if given > most else "low"
        yield f"{key}: {_short(given)} is very {word} for {of}: {_short(least)} to {_short(most)} is usual"


def _short(rate: float) -> str:
    """As people write it: 1e-5, 0.01."""
    return f"{rate:.3g}".replace("e-0", "e-")


def row_notices(config: Config, data: Data) -> Iterator[str]:
    """A step with more rows than there are."""
    asked, rows = config.prompts_per_step, len(data.train)
    if asked > rows and config.rollout is None:
        what = {"prompts": "prompts", "pairs": "pairs"}.get(config.method.reads, "rows")
        yield (
            f"prompts_per_step: {asked} {what} a step, but the training data has {rows} rows, so a step takes some of "
            f"them more than once: set prompts_per_step={rows} or less"
        )


def _long_answers(config: Config, data: Data) -> Iterator[tuple[str, list[str]]]:
    """The parts of the data with an answer of more bytes than `max_new_tokens`, and their answers: a token has at
    least one byte."""
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
            spaced, bare = (plain_ids(tokenizer, [before + text.strip() for text in answers]) for before in (" ", ""))
        lengths = [min(len(one), len(other)) for one, other in zip(spaced, bare, strict=True)]
        over = sum(length > config.max_new_tokens for length in lengths)
        if over:
            yield (
                f"max_new_tokens: {config.max_new_tokens} is too short for {over} of {len(answers)} answers in the "
                f"{part} data, of up to {max(lengths)} tokens: completions as long as these are cut"
            )
