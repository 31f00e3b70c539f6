"""Checkers: whether a completion is correct. A checker is a reward that gives 1, 0, or None if it cannot tell."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import regex

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.prompts import completion_text
from vigneron.errors import UserError, did_you_mean
from vigneron.rewards.apply import ApplyReward, RewardFailed, RewardFunction, with_seen
from vigneron.rewards.final_number import final_number_reward, number_spans
from vigneron.rewards.judge_right import judge_right_reward
from vigneron.rewards.maze_walk import maze_walk_reward
from vigneron.rewards.nim_move import nim_optimal_reward
from vigneron.rewards.sentiment import inversion_reward
from vigneron.rewards.user_reward import checked_rewards, named_errors, started
from vigneron.text import SPACED, comparable, nfc, normalise, words_and_numbers
from vigneron.user_code import python_function


def is_exact(completion: Any, answer: Any) -> bool:
    return normalise(completion_text(completion)) == normalise(completion_text(answer))


def includes(completion: Any, answer: Any) -> bool:
    """Whether the completion contains the answer as whole words and whole numbers.

    No space is needed around a word of a script without spaces between words. `5` is not in `-5`, `3.5` or `1,005`.
    """
    text, wanted = completion_text(completion), normalise(completion_text(answer))
    if normalise(text) == wanted or not wanted:
        return normalise(text) == wanted
    # By line: the last number of one line is not grouped with the first of the next.
    text = "\n".join(filter(None, map(comparable, text.splitlines())))
    inside = {at for start, stop in number_spans(text) for at in range(start + 1, stop)}
    found = _whole_words(wanted).finditer(text, overlapped=True)
    return any(match.start() not in inside and match.end() not in inside for match in found)


@lru_cache(maxsize=16)  # the samples of a prompt follow one another
def _whole_words(wanted: str) -> Any:
    before = rf"(?<!{SPACED})" if STARTS_WORD.match(wanted) else ""
    after = rf"(?!{SPACED})" if ENDS_WORD.search(wanted) else NO_MARK if ENDS_LETTER.search(wanted) else ""
    return regex.compile(before + r"[ \n]".join(map(regex.escape, wanted.split(" "))) + after, regex.V1)


STARTS_WORD = regex.compile(rf"{SPACED}|-?[.,]?\d", regex.V1)
ENDS_WORD = regex.compile(rf"{SPACED}\Z", regex.V1)
ENDS_LETTER = regex.compile(r"[\p{L}\p{M}]\Z")
NO_MARK = r"(?!\p{M})"


def exact_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """String equality after normalisation; a missing answer gives a missing reward."""
    return [
        None if wanted is None else float(is_exact(completion, wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def strict_equality_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """String equality without surrounding space and case, the check of PGSRM's released code: `cold.` is not `cold`."""
    return [
        None if wanted is None else float(_lowered(completion) == _lowered(wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def inclusion_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Whether the answer is in the completion, whatever stands around it."""
    return [
        None if wanted is None else float(includes(completion, wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _lowered(text: Any) -> str:
    return nfc(completion_text(text).strip().lower())


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def last_line_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Equality of the last lines: for answers that end with their result."""
    return exact_reward(
        prompts,
        [last_line(completion_text(completion)) for completion in completions],
        answer=[None if wanted is None else last_line(completion_text(wanted)) for wanted in answer],
    )


def in_order_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Equality of the words and numbers in their order, whatever stands between them: for answers that list several
    things. A comma separates: `3,14` is two numbers.

    An "and" between two words is left out, on both sides."""
    return [
        None if wanted is None else float(_listed(completion) == _listed(wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _listed(text: Any) -> list[str]:
    return [word for word in words_and_numbers(completion_text(text)) if word != "and"]


CHECKERS: dict[str, RewardFunction] = {
    "equality": exact_reward,
    "strict_equality": strict_equality_reward,
    "inclusion": inclusion_reward,
    "in_order": in_order_reward,
    "last_line": last_line_reward,
    "final_number": final_number_reward,
    "sentiment_inversion": inversion_reward,
    "maze_walk": maze_walk_reward,
    "judge_right": judge_right_reward,
    "nim_optimal": nim_optimal_reward,
}
NEEDS = {
    "equality": "answer",
    "strict_equality": "answer",
    "inclusion": "answer",
    "in_order": "answer",
    "last_line": "answer",
    "final_number": "answer",
    "sentiment_inversion": "input",
    "maze_walk": "input",
    "judge_right": "higher",
    "nim_optimal": "piles",
}
"""The column that a built-in checker needs."""


Check = Callable[[Batch], Batch]


def load_checker(name: str, *, optional: bool = False) -> RewardFunction:
    """`optional`: without the column that it needs, a built-in checker cannot tell."""
    if name not in CHECKERS and ":" not in name:
        raise UserError(f"unknown checker '{name}'{did_you_mean(name, CHECKERS)}; or give module:function")
    if name not in CHECKERS:
        return python_function(name, "data.checker")

    def checker(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        if columns.get(NEEDS[name]) is None:
            return [None] * len(completions)
        return CHECKERS[name](prompts, completions, **columns)

    return checker if optional else CHECKERS[name]


def build_check(name: str) -> Check:
    """`check(batch)`: the batch with `correct` for each sample; None if the needed column is missing."""
    needed = NEEDS.get(name)
    apply = ApplyReward(load_checker(name), missing_limit=1.0, what="checker")

    def check(batch: Batch) -> Batch:
        if needed is not None and needed not in batch.samples.columns:
            return batch.with_signals(correct=(None,) * len(batch))
        return batch.with_signals(correct=_verdicts(apply(batch).signals.rewards_B.tolist(), name))

    return check


def build_run_check(config: Config, name: str) -> Check:
    """The same of what a run's reward reads: with `reward.sees: answer`, what follows the delimiter."""
    check, reward = build_check(name), config.reward
    return check if reward.sees != "answer" else lambda batch: check(with_seen(batch, reward.delimiter))


def check_texts(
    name: str, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> tuple[bool | None, ...]:
    """Verdicts on texts without a batch. The checker gets no `completion_ids`."""
    checker, what = load_checker(name), f"checker '{name}'"
    given = {**columns, "prompts": list(prompts), "completions": list(completions)}
    logs = {"log_extra": lambda name, values: None, "log_metric": lambda name, value: None}
    result = named_errors(what, lambda: started(checker(**given, **logs)))
    result = named_errors(what, result.result) if isinstance(result, Future) else result
    values = checked_rewards(what, result, len(completions))
    return _verdicts([math.nan if value is None else value for value in values], name)


def _verdicts(values: Sequence[float], name: str) -> tuple[bool | None, ...]:
    for row, value in enumerate(values, start=1):
        if value == value and value not in (0.0, 1.0):
            raise RewardFailed(f"checker '{name}' returned {value:g} for row {row}; expected 1, 0 or None")
    return tuple(None if value != value else value == 1.0 for value in values)
