"""The prompts that GRAPE samples from and scores after, by the rubric as it is at the time."""

from dataclasses import dataclass
from typing import Any

import torch

from vigneron.batch import Batch
from vigneron.config.group import ScaffoldConfig
from vigneron.core.draws import OTHER_DRAWS, keyed_uniform
from vigneron.core.off_policy import scaffold_share
from vigneron.data.prompts import Row, completion_text
from vigneron.rollout.grape_memory import EarlierResponse, row_of
from vigneron.rubric.live_rubric import LiveRubric
from vigneron.rubric.model import Category
from vigneron.rubric.prompts import criteria_prompt, feedback_of, generation_prompt, hindsight_prompt, revision_prompt
from vigneron.rubric.rows import category_of

# Keys of the draws of a scaffold's items, beyond those of the rollout: one for each item.
OF_ITEMS = OTHER_DRAWS + 16


@dataclass(frozen=True)
class Prompts:
    live: LiveRubric

    def category(self, row: Row) -> Category:
        rubric = self.live.rubric
        return rubric.categories[category_of(rubric, row, 0, "the data")]

    def generation(self, row: Row) -> Any:
        return generation_prompt(self.category(row), row["prompt"])

    def revision(self, row: Row, earlier: EarlierResponse) -> Any:
        return revision_prompt(self.category(row), row["prompt"], earlier.response, earlier.feedback)

    def has_generation_prompt(self) -> bool:
        return any(category.generate is not None for category in self.live.rubric.categories.values())

    def hindsight(self, batch: Batch, sees: str) -> list[Any]:
        """For each sample, its question after what the policy sees that scores it; None: nothing."""
        rows = [row_of(batch, i) for i in range(len(batch))]
        if sees == "generation_prompt":
            return [self.generation(row) for row in rows]
        feedback = [feedback_of(logged) for logged in batch.samples.extras["rubric"]]
        if sees == "feedback":
            return [
                hindsight_prompt(row["prompt"], text) if text else None
                for row, text in zip(rows, feedback, strict=True)
            ]
        texts = [completion_text(one) for one in batch.samples.completions]
        return [
            None if best is None else hindsight_prompt(row["prompt"], feedback[best], texts[best])
            for row, best in zip(rows, better_siblings(batch), strict=True)
        ]


@dataclass(frozen=True)
class Scaffold:
    """RuscaRL's help for a fresh response, by its place in the group and the progress of training."""

    prompts: Prompts
    options: ScaffoldConfig
    group_size: int
    steps: int
    seed: int

    def share(self, step: int, name: int) -> float:
        progress, options = step / max(1, self.steps - 1), self.options
        place = name % self.group_size
        return scaffold_share(place, self.group_size, progress, half_at=options.half_at, steepness=options.steepness)

    def __call__(self, row: Row, step: int, name: int) -> Any:
        """The prompt of sample `name` of a step."""
        share = self.share(step, name)
        if self.options.shows == "generation_prompt":
            return self.prompts.generation(row) if rounded(share) else row["prompt"]
        items = self.prompts.category(row).items
        count = rounded(share * len(items))
        draws = [float(keyed_uniform(self.seed, step, torch.tensor([name]), OF_ITEMS + j)) for j in range(len(items))]
        shown = sorted(sorted(range(len(items)), key=draws.__getitem__)[:count])
        return criteria_prompt([items[j] for j in shown], row["prompt"])


def rounded(count: float) -> int:
    """To the nearest; one half, of which the sigmoid may have taken a little, upwards."""
    return int(count + 0.5 + 1e-6)


def better_siblings(batch: Batch) -> list[int | None]:
    """For each sample the best of its group, where that has a higher reward; the first one of several."""
    rewards, groups = batch.signals.rewards_B.tolist(), batch.samples.group_B.tolist()
    best: dict[int, int] = {}
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if reward == reward and (group not in best or reward > rewards[best[group]]):
            best[group] = i
    return [best[g] if g in best and rewards[best[g]] > r else None for r, g in zip(rewards, groups, strict=True)]
