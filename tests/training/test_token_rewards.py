"""Rewards on the tokens that complete a step, or a turn of a conversation, for PPO."""

import math
from typing import Any

import torch

from support.small_batch import changed, make_batch
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.methods.token_rewards import token_rewards
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.combined import CombinedReward
from vigneron.rewards.environment import environment_reward
from vigneron.rollout.conversations import EARNED, REWARD, TURN_REWARDS


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


def test_rewards_fall_on_the_last_tokens_of_turns() -> None:
    """Turns of 3 and 2 tokens with a reply of 4 between them, which earned 0.25 and 0.5; 1 was added to their sum."""
    batch = make_batch(
        [5], [9], spans=(((5, 8), (12, 14)),), rewards_B=torch.tensor([1.75]), extras={TURN_REWARDS: ((0.25, 0.5),)}
    )
    expected = torch.tensor([[0, 0, 0.25, 0, 0, 0, 0, 0, 1.5]])
    assert torch.equal(token_rewards(None, batch), expected)  # type: ignore[arg-type]
    del batch.samples.extras[TURN_REWARDS]
    assert token_rewards(None, batch)[0].tolist() == [0] * 8 + [1.75]  # type: ignore[arg-type]


def test_in_a_sum_of_rewards_the_environments_part_falls_on_turns() -> None:
    """R = 2 · (0.25 + 0.5) + 3 · 1: of it 0.5 on the first turn's last token, and 1 + 3 on the second's."""
    batch = make_batch([5], [9], spans=(((5, 8), (12, 14)),))
    batch = batch.with_samples(extras={REWARD: (0.75,), EARNED: ((0.25, 0.5),)})
    parts = [("environment", environment_reward), ("python", lambda completions, **_: [1.0] * len(completions))]
    scored = ApplyReward(CombinedReward(parts, [2.0, 3.0], "sum"))(batch)
    assert token_rewards(None, scored)[0].tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0, 4.0]  # type: ignore[arg-type]
    smallest = ApplyReward(CombinedReward(parts, [2.0, 3.0], "min"))(batch)
    assert token_rewards(None, smallest)[0].tolist() == [0] * 8 + [1.5]  # type: ignore[arg-type]
