"""Rewards of a process model: the probabilities that each step is right, combined to one reward, or at step ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from vigneron.core import process
from vigneron.data.prompts import completion_text
from vigneron.data.steps import step_ends, step_spans
from vigneron.errors import UserError
from vigneron.policy.device import on_device
from vigneron.policy.model import Policy
from vigneron.policy.rank_batches import map_microbatches
from vigneron.policy.reward_model import reward_model_kind, scores_at, spread_scores, step_separator
from vigneron.rewards.apply import STEP_REWARDS, RewardFunction
from vigneron.rewards.model import MICROBATCH_TOKENS, ModelReward, PreferenceReward, conversations
from vigneron.rollout.demonstrations import Demonstrations

Shape = Literal["none", "pspo", "pspo_released"]


@dataclass(frozen=True)
class ProcessReward:
    """C(p₁ … p_n) over the steps of a completion, or PSPO's s·f(s, n). With `at_steps`, a step's change of C is its own
    reward."""

    scorer: Policy
    separator: str | None = None
    """None: what the model was trained with."""
    combine: process.Combine = "min"
    at_steps: bool = False
    shape: Shape = "none"
    __name__ = "process"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        tools: Sequence[Any] | None = None,
        log_extra: Callable[[str, Any], None] = lambda name, values: None,
        log_metric: Callable[[str, float], None] = lambda name, value: None,
        **columns: Any,
    ) -> list[float | None]:
        texts = [completion_text(completion) for completion in completions]
        separator = self.separator or step_separator(self.scorer)
        steps = step_probabilities(self.scorer, prompts, texts, separator, tools)
        log_extra("step_probabilities", [[round(p, 4) for p in each] for each in steps])
        log_metric("steps", fmean(map(len, steps)))
        right_BK, steps_B = padded(steps)
        if self.at_steps:
            changes = process.step_rewards(right_BK, self.combine).tolist()
            stops = [[stop for _, stop in step_spans(text, separator)] or [len(text)] for text in texts]
            placed = [
                [[stop, change] for stop, change in zip(*both, strict=False)]
                for both in zip(stops, changes, strict=True)
            ]
            log_extra(STEP_REWARDS, placed)
        return list(self.rewards(right_BK, steps_B).tolist())

    def rewards(self, right_BK: Tensor, steps_B: Tensor) -> Tensor:
        if self.shape == "none":
            return process.combined(right_BK, steps_B, self.combine)
        shaped = process.pspo if self.shape == "pspo" else process.pspo_released
        return shaped(process.geometric_mean(right_BK, steps_B), steps_B)


def step_probabilities(
    scorer: Policy,
    prompts: Sequence[Any],
    texts: Sequence[str],
    separator: str | None,
    tools: Sequence[Any] | None = None,
) -> list[list[float]]:
    """For each completion, the probability that each of its steps is right; at least one, at its end."""
    if not texts:
        return []
    both = zip(conversations(prompts, tools), texts, strict=True)
    batch = Demonstrations(scorer)([{**row, "answer": text, "completion": text} for row, text in both])
    if batch.samples.truncated_B.any():
        raise UserError(
            f"reward.model: a prompt with its completion exceeds the model's context of {scorer.context_length} "
            "tokens: lower max_new_tokens, or choose another model"
        )
    ends = step_ends(scorer.tokenizer, batch.samples.completion_lists(), texts, separator, [False] * len(texts))
    at = torch.zeros(batch.samples.completion_BT.shape, dtype=torch.bool)
    for row, tokens in enumerate(ends):
        at[row, tokens] = True
    batch = batch.with_signals(values_BT=at.to(scorer.device, torch.float32))

    def scores(part: Any) -> dict[str, Tensor]:
        at_BT = part.signals.values_BT.bool()
        return {"scores_BT": spread_scores(scores_at(scorer, part, at_BT), at_BT)}

    with torch.no_grad(), on_device(scorer.device):
        right = map_microbatches(batch, MICROBATCH_TOKENS, scores)["scores_BT"].double().sigmoid().tolist()
    return [[right[row][token] for token in tokens] for row, tokens in enumerate(ends)]


def padded(steps: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """Probabilities in rows of the same length, filled up with 1, and the number of each row's own."""
    most = max(map(len, steps))
    return (
        torch.tensor([[*row, *[1.0] * (most - len(row))] for row in steps], dtype=torch.float64),
        torch.tensor([len(row) for row in steps]),
    )


def ranking_reward(scorer: Policy, combine: process.Combine = "min") -> RewardFunction:
    """What a model ranks completions by: a process model's steps combined, a reward model's score, a preference model's
    win rate."""
    kind = reward_model_kind(scorer)
    if kind == "process":
        return ProcessReward(scorer, combine=combine)
    return PreferenceReward(scorer) if kind == "first_is_better" else ModelReward(scorer)
