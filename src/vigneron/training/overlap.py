"""Rollout and reward of a step; an asynchronous reward works on one part while the next is sampled."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vigneron.batch import Batch, concatenated
from vigneron.core.advantages import without_variance
from vigneron.rollout.prompts import PromptOrder, Row
from vigneron.timing import phase
from vigneron.training.slots import Method

# Fewer and larger parts sample faster, more and smaller ones hide more of the reward's waiting.
PARTS = 4


def rewarded(method: Method, prompts: PromptOrder, step: int) -> Batch:
    """A step's samples with their rewards. Groups that teach nothing are replaced, as often as the method says."""
    batch = drawn(method, prompts.at(step), step, 0)
    replaced = 0
    for time in range(1, method.resamples + 1):
        idle_B = without_variance(batch.teaching_B, batch.group_B)
        lacking = len(batch.group_B[idle_B].unique())
        if not lacking:
            break
        first = time * prompts.prompts_per_step
        more = drawn(method, prompts.more(step, time)[:lacking], step, first)
        kept = [i for i, idle in enumerate(idle_B.tolist()) if not idle]
        batch = concatenated([batch.rows(kept), more]) if kept else more
        replaced += lacking
    return replace(batch, figures={**batch.figures, "groups_replaced": replaced}) if method.resamples else batch


def drawn(method: Method, rows: Sequence[Row], step: int, first: int = 0) -> Batch:
    """The same batch with and without overlap: a sample's draws do not depend on its part, and no group is split."""
    some = {"whole_step": False} if first else {}
    if not getattr(method.reward, "overlaps", False):
        with phase("rollout"):
            batch = method.rollout(rows, step, first)
        with phase("reward"):
            return method.reward(batch, **some)
    return method.reward.of_parts(_sampled_in_parts(method, rows, step, first), **some)  # type: ignore[attr-defined]


def _sampled_in_parts(method: Method, rows: Sequence[Row], step: int, first: int) -> Iterator[Batch]:
    size = -(-len(rows) // PARTS)
    for start in range(0, len(rows), size):
        with phase("rollout"):
            part = method.rollout(rows[start : start + size], step, first + start)
        yield part
