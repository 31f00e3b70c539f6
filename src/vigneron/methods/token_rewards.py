"""Rewards by token: all of it on a text's last token, or at the ends of its steps or turns if the reward has them."""

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.advantages import on_last_token
from vigneron.data.prompts import completion_text
from vigneron.data.steps import token_ends
from vigneron.rewards.apply import STEP_REWARDS
from vigneron.rollout.conversations import TURN_REWARDS
from vigneron.training.parts import Parts


def token_rewards(parts: Parts, batch: Batch) -> Tensor:
    """R on the last token; or each of the rewards that were logged as `step_rewards` on the token that completes its
    characters, and the rest of R on the last token: they sum to R, whatever was added to it. What ends the text belongs
    to the last token."""
    samples, rewards_B = batch.samples, batch.signals.rewards_B
    rewards_BT = on_last_token(rewards_B, samples.mask_BT)
    if TURN_REWARDS in samples.extras:
        return _with_placed(batch, _at_turn_ends(batch))
    logged = samples.extras.get(STEP_REWARDS)
    if logged is None:
        return rewards_BT
    ids, texts = samples.completion_lists(), [completion_text(text) for text in samples.completions]
    within = [
        [(stop, reward) for stop, reward in given or () if text[stop:].strip()]
        for given, text in zip(logged, texts, strict=True)
    ]
    ends = token_ends(parts.policy.tokenizer, ids, texts, [[stop for stop, _ in given] for given in within])
    placed = torch.zeros(rewards_BT.shape, dtype=torch.float64)
    for row, (given, tokens) in enumerate(zip(within, ends, strict=True)):
        for (_, reward), token in zip(given, tokens, strict=True):
            placed[row, min(token, len(ids[row]) - 1)] += reward
    return _with_placed(batch, placed)


def _at_turn_ends(batch: Batch) -> Tensor:
    """What each turn of a conversation earned, on its last token."""
    samples = batch.samples
    placed = torch.zeros(samples.completion_BT.shape, dtype=torch.float64)
    for row, (spans, rewards) in enumerate(zip(samples.spans, samples.extras[TURN_REWARDS], strict=True)):
        for (_, stop), reward in zip(spans, rewards or (), strict=False):
            placed[row, stop - 1 - spans[0][0]] += reward
    return placed


def _with_placed(batch: Batch, placed: Tensor) -> Tensor:
    """These rewards within texts, and what is left of R on the last token."""
    rewards_B = batch.signals.rewards_B
    placed_BT = placed.to(rewards_B)
    return placed_BT + on_last_token(rewards_B - placed_BT.sum(1), batch.samples.mask_BT)
