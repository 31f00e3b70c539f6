"""Rollout and reward of a step; an asynchronous reward works on one part while the next is sampled."""

from collections.abc import Iterator, Sequence

from vigneron.batch import Batch
from vigneron.rollout.prompts import Row
from vigneron.timing import phase
from vigneron.training.slots import Method

# Fewer and larger parts sample faster, more and smaller ones hide more of the reward's waiting.
PARTS = 4


def rewarded(method: Method, rows: Sequence[Row], step: int) -> Batch:
    """The same batch either way: a sample's draws do not depend on its part, and a group is never split."""
    if not getattr(method.reward, "overlaps", False):
        with phase("rollout"):
            batch = method.rollout(rows, step)
        with phase("reward"):
            return method.reward(batch)
    return method.reward.of_parts(_sampled_in_parts(method, rows, step))  # type: ignore[attr-defined]


def _sampled_in_parts(method: Method, rows: Sequence[Row], step: int) -> Iterator[Batch]:
    size = -(-len(rows) // PARTS)
    for first in range(0, len(rows), size):
        with phase("rollout"):
            part = method.rollout(rows[first : first + size], step, first)
        yield part
