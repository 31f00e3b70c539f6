"""Checkers: what counts as right. A checker is a reward that gives 1 or 0, or None where nothing can be said."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vigneron.batch import Batch
from vigneron.rewards.exact import exact_reward
from vigneron.rewards.functions import python_function
from vigneron.rewards.sentiment import inversion_reward

Checker = Callable[..., Sequence[float | None]]

CHECKERS: dict[str, Checker] = {"equality": exact_reward, "sentiment_inversion": inversion_reward}


def load_checker(name: str) -> Checker:
    return CHECKERS[name] if name in CHECKERS else python_function(name, "data.checker")


def checked(batch: Batch, checker: Checker) -> Batch:
    """Each sample with the checker's verdict; None where the row has no answer to compare with."""
    answers = batch.columns.get("answer", (None,) * len(batch))
    rows = [i for i, answer in enumerate(answers) if answer is not None]
    verdicts: list[bool | None] = [None] * len(batch)
    if rows:
        columns = {name: [column[i] for i in rows] for name, column in batch.columns.items()}
        prompts, completions = [batch.prompts[i] for i in rows], [batch.completions[i] for i in rows]
        for i, verdict in zip(rows, checker(prompts=prompts, completions=completions, **columns), strict=True):
            verdicts[i] = None if verdict is None else verdict > 0
    return replace(batch, correct=tuple(verdicts))
