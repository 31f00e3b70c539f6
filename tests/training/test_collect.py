"""Dynamic sampling: which groups are replaced, and under which numbers the new ones come."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.data.curriculum import Curriculum
from vigneron.rollout.conversations import Transcript, turn_sums
from vigneron.training.collect import DynamicSampling, trains_nothing


def test_which_groups_train_nothing() -> None:
    """Equal rewards; all truncated and masked. A truncated sample's reward still counts in its group's mean."""
    rewards_B = torch.tensor([1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 1.0, 0.0])
    excluded_B = torch.tensor([True, False, False, False, True, True, False, False])
    batch = make_batch([1] * 8, [2] * 8, rewards_B=rewards_B, excluded_B=excluded_B)
    assert trains_nothing(batch).tolist() == [False, False, True, True, True, True, False, False]


def test_metrics_of_conversations_are_means_over_all_that_was_drawn() -> None:
    """One of three groups is replaced. Of those drawn first one failed; only what is drawn later has two turns."""

    def rollout(rows: Sequence[Any], step: int = 0, first: int = 0) -> Batch:
        rewards = [float(first or i) * sample for i in range(len(rows)) for sample in range(2)]
        long = Transcript(spans=[(0, 1), (2, 3)], rewards=[1.0, 4.0], logs=[{"hits": 1}, {"hits": 2}])
        short = Transcript(spans=[(0, 1)], rewards=[2.0], logs=[{}])
        failed = Transcript(spans=[(0, 1)], error="raised")
        talks = [long, short] if first else [failed, *[short] * 5]
        group_B = torch.arange(first, first + len(rows)).repeat_interleave(2)
        size = len(rewards)
        batch = make_batch([1] * size, [2] * size, rewards_B=torch.tensor(rewards), group_B=group_B)
        return batch.with_turns(turn_sums(talks))

    curriculum = Curriculum([{"prompt": "a"}] * 9, prompts_per_step=3, seed=0)
    metrics = DynamicSampling(rollout, curriculum, attempts=1)(curriculum.at(0)).signals.metrics
    expected = {
        "turns/mean": 9 / 8,
        "turns/cut": 0.0,
        "turns/failed": 1 / 8,
        "turns/reward/1": (6 * 2.0 + 1.0) / 7,
        "turns/reward/2": 4.0,
        "turns/hits": 3 / 7,
        "groups_replaced": 1,
    }
    assert metrics == pytest.approx(expected)


def test_new_groups_have_numbers_of_their_own() -> None:
    """Also where a curriculum gives more rows than `prompts_per_step`: draws are keyed by these numbers."""

    class Generous(Curriculum):
        def at(self, step: int) -> list[Any]:
            return list(self.rows[:3])

    seen: list[int] = []

    def rollout(rows: Sequence[Any], step: int = 0, first: int = 0) -> Batch:
        numbers = list(range(first, first + len(rows)))
        seen.extend(numbers)
        rewards = [1.0 if row["prompt"] == "varied" and sample else 0.0 for row in rows for sample in range(2)]
        group_B = torch.tensor(numbers).repeat_interleave(2)
        drawn = make_batch([1] * len(rewards), [2] * len(rewards), rewards_B=torch.tensor(rewards), group_B=group_B)
        return drawn.with_metrics({"first": float(first)})

    rows = [{"prompt": "varied"}, *({"prompt": "equal"} for _ in range(9))]
    curriculum = Generous(rows, prompts_per_step=2, seed=0)
    batch = DynamicSampling(rollout, curriculum, attempts=2)(curriculum.at(0))
    assert len(set(seen)) == len(seen) == 3 + 2 + 2
    assert len(batch.samples.group_B.unique()) == 3
    assert batch.signals.metrics["groups_replaced"] == 4
    # Over all that was drawn: 6 samples under 0, then 4 under 3, then 4 under 6.
    assert batch.signals.metrics["first"] == pytest.approx((6 * 0 + 4 * 3 + 4 * 6) / 14)
