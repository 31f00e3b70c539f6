"""A method, a rollout and a curriculum of your own, named in own_method.yaml; nothing in the package changes.

    cd examples/own_method
    vigneron train own_method.yaml --name rloo
    vigneron resume runs/rloo steps=40
    vigneron report runs/rloo

Each is a function `build(parts, options)`; the annotation of `options` is the class that checks its part of the recipe.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from vigneron.core.advantages import group_relative, group_sizes
from vigneron.core.losses import policy_gradient
from vigneron.extend import (
    Batch,
    Curriculum,
    CurriculumParts,
    GrpoKlConfig,
    KlPenalty,
    Method,
    MethodOptions,
    Parts,
    Rollout,
    RolloutParts,
    Row,
    Scores,
    SlotOptions,
    Term,
    policy_metrics,
    with_advantages,
)


class RlooOptions(MethodOptions):
    """RLOO (Ahmadian et al. 2024): REINFORCE, each sample against the mean of the others of its group."""

    description: ClassVar[str] = "RLOO: REINFORCE with the other samples of the group as the baseline."
    kl: GrpoKlConfig = GrpoKlConfig()

    @property
    def smallest_group(self) -> int:
        return 2


def build(parts: Parts, options: RlooOptions) -> Method:
    kl = KlPenalty(parts, options.kl, penalised=options.kl.coefficient > 0)

    def advantage(batch: Batch) -> Batch:
        """A = R − mean of the others = G / (G − 1) · (R − mean of the group)."""
        rewards_B, group_B = batch.signals.rewards_B, batch.samples.group_B
        size_B = group_sizes(rewards_B, group_B)
        advantages_B = group_relative(rewards_B, group_B) * size_B / (size_B - 1).clamp(min=1)
        return with_advantages(batch, advantages_B, **parts.precompute(batch, *kl.passes))

    def score(batch: Batch) -> Scores:
        return parts.score(batch, exact_kl=kl.exact)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −A log π + β D_KL."""
        surrogate_BT = policy_gradient(now.logprobs_BT, batch.signals.advantages_BT)
        return [Term("loss/policy", surrogate_BT, 1.0), *policy_metrics(batch, now), *kl.terms(batch, now)]

    update = parts.gradient_update(score, loss, after_update=parts.kl_previous, controller=kl.controller)
    return Method(parts.rollout, parts.reward, advantage, update)


class ShortFirstOptions(SlotOptions):
    warmup_steps: int = Field(default=10, ge=0)
    """For so many steps, only the shorter half of the prompts."""


class ShortFirst(Curriculum):
    """The shorter half of the prompts first, then all of them."""

    def __init__(self, default: Curriculum, warmup_steps: int) -> None:
        super().__init__(default.rows, default.prompts_per_step, default.seed)
        by_length = sorted(default.rows, key=lambda row: len(str(row["prompt"])))
        shorter = by_length[: max(1, len(by_length) // 2)]
        self._shorter = Curriculum(shorter, default.prompts_per_step, default.seed)
        self._warmup_steps = warmup_steps

    def at(self, step: int) -> list[Row]:
        return self._shorter.at(step) if step < self._warmup_steps else super().at(step)

    def more(self, rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        """What dynamic sampling (`method.resample` of GRPO) takes in place of groups with equal rewards."""
        more = self._shorter.more if step < self._warmup_steps else super().more
        return more(rows, step, attempt)


def short_first(parts: CurriculumParts, options: ShortFirstOptions) -> Curriculum:
    return ShortFirst(parts.default, options.warmup_steps)


class HintedOptions(SlotOptions):
    hint: str = "Answer with one word. "
    """Put before every prompt, in training and in evaluation."""


def hinted(parts: RolloutParts, options: HintedOptions) -> Rollout:
    """The default rollout, with a hint before the prompts, which are plain text here."""

    def rollout(rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        def with_hint(row: Row) -> dict[str, Any]:
            return {**row, "prompt": options.hint + row["prompt"]}

        return parts.default([with_hint(row) for row in rows], step, first)

    return rollout
