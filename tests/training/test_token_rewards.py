"""Rewards on the tokens that complete a step, for PPO."""

import math
from typing import Any

import torch

from support.small_batch import changed, make_batch
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.methods.token_rewards import token_rewards


class Owner:
    policy = tiny_policy()


def small_batch() -> Batch:
    parts: Any = Owner()
    encoded = [parts.policy.tokenizer(text)["input_ids"] for text in ("ab\ncd", "x\n", "yz")]
    ids = [[*encoded[0], 0], encoded[1], [*encoded[2], 0]]
    batch = make_batch([1, 1, 1], [len(row) for row in ids])
    padded = torch.tensor([[*row, *[0] * (6 - len(row))] for row in ids])
    batch = changed(batch, completion_BT=padded, completion_ids=tuple(map(tuple, ids)))
    return batch.with_samples(completions=("ab\ncd", "x\n", "yz")).with_signals(
        rewards_B=torch.tensor([0.5, 0.25, math.nan])
    )


def test_each_reward_is_on_its_steps_last_token() -> None:
    parts: Any = Owner()
    batch = small_batch()
    plain = token_rewards(parts, batch)
    assert plain[:2].tolist() == [[0, 0, 0, 0, 0, 0.5], [0, 0.25, 0, 0, 0, 0]]
    logged = batch.with_samples(extras={"step_rewards": ([[2, 0.75], [5, -0.25]], [[1, 0.25]], None)})
    placed = token_rewards(parts, logged)
    assert placed[:2].tolist() == [[0, 0.75, 0, 0, 0, -0.25], [0, 0.25, 0, 0, 0, 0]]
    torch.testing.assert_close(placed[:2].sum(1), batch.signals.rewards_B[:2])


def test_the_last_reward_is_on_its_token_too_and_the_rest_at_the_end() -> None:
    parts: Any = Owner()
    batch = small_batch().with_samples(extras={"step_rewards": ([[2, 0.25]], [], [[1, 0.5], [99, 2.0]])})
    batch = batch.with_signals(rewards_B=torch.tensor([1.0, 0.25, 0.75]))
    assert token_rewards(parts, batch).tolist() == [
        [0, 0.25, 0, 0, 0, 0.75],
        [0, 0.25, 0, 0, 0, 0],
        [0.5, 0, 0.25, 0, 0, 0],
    ]
