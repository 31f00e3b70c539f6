"""Rollouts that also reward: while more is sampled, and with new prompts in place of groups that train nothing.

Each wraps a method's rollout and its reward, and is itself a rollout.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from vigneron.batch import Batch, concatenate, merged_metrics
from vigneron.core.advantages import group_sizes, without_variance
from vigneron.data.curriculum import Curriculum
from vigneron.data.prompts import Row
from vigneron.rollout.build import Rollout
from vigneron.timing import phase
from vigneron.training.method import Method, unchanged

# Fewer and larger parts sample faster, more and smaller ones hide more of the reward's latency.
PARTS = 4


def collecting(method: Method, curriculum: Curriculum) -> Method:
    """The method, its reward moved into its rollout where the two overlap or samples are drawn again."""
    if not method.resamples and not overlaps(method.reward):
        return method
    rollout = rewarding(method)
    if method.resamples:
        rollout = DynamicSampling(rollout, curriculum, method.resamples)
    return replace(method, rollout=rollout, reward=unchanged)


def rewarding(method: Method) -> Rollout:
    """The method's rollout and its reward as one rollout."""
    make = OverlappedRollout if overlaps(method.reward) else RewardedRollout
    return make(method.rollout, method.reward)


def overlaps(reward: Callable[..., Batch]) -> bool:
    """Whether a reward is asynchronous: it waits for a server, and sampling can continue meanwhile."""
    return getattr(reward, "overlaps", False)


@dataclass(frozen=True)
class RewardedRollout:
    rollout: Rollout
    reward: Callable[..., Batch]

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        batch = self.rollout(rows, step, first)
        with phase("reward"):
            return self.reward(batch, **_part_of_a_step(first))


@dataclass(frozen=True)
class OverlappedRollout:
    """Rewards one part of a step while the next is sampled.

    The same batch as without overlap: a sample's draws do not depend on its part, and no group is split.
    """

    rollout: Rollout
    reward: Callable[..., Batch]

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        parts = self._parts(rows, step, first)
        return self.reward.of_parts(parts, **_part_of_a_step(first))  # type: ignore[attr-defined]

    def _parts(self, rows: Sequence[Row], step: int, first: int) -> Iterator[Batch]:
        size = -(-len(rows) // PARTS)
        for start in range(0, len(rows), size):
            yield self.rollout(rows[start : start + size], step, first + start)


@dataclass(frozen=True)
class DynamicSampling:
    """Replaces groups that train nothing by groups of other prompts, at most `attempts` times a step. What rewards and
    environments log is averaged over all samples drawn."""

    rollout: Rollout
    curriculum: Curriculum
    attempts: int

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        batch = self.rollout(rows, step, first)
        replaced, drawn = 0, [batch]
        for attempt in range(1, self.attempts + 1):
            idle_B = trains_nothing(batch)
            count = len(batch.samples.group_B[idle_B].unique())
            if not count:
                break
            others = self.curriculum.more(rows, step, attempt)[:count]
            more = self.rollout(others, step, attempt * max(len(rows), self.curriculum.prompts_per_step))
            useful = [i for i, is_idle in enumerate(idle_B.tolist()) if not is_idle]
            self.curriculum.replaced(batch.rows([i for i, is_idle in enumerate(idle_B.tolist()) if is_idle]), step)
            batch = concatenate([batch.rows(useful), more]) if useful else more
            replaced += count
            drawn.append(more)
        return batch.with_signals(**merged_metrics(drawn)).with_metrics({"groups_replaced": replaced})


def trains_nothing(batch: Batch) -> Tensor:
    """True for the samples of groups whose rewards are all equal, or of which no sample is trained on.

    A truncated sample that is masked out of the loss still counts in its group's mean, as in TRL.
    """
    group_B = batch.samples.group_B
    return without_variance(batch.signals.rewards_B, group_B) | (group_sizes(batch.trained_rewards_B, group_B) == 0)


def _part_of_a_step(first: int) -> dict[str, bool]:
    """Rows behind the first are some groups of a step: all of them may lack a reward without ending the run."""
    return {"whole_step": False} if first else {}
