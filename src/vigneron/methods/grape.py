"""GRAPE (`rlmt-grape` §6.1): GRPO on a rubric's reward, with responses that are fresh, revised or the dataset's own.

With fresh responses under the bare question, one item scored by a reward model and confidence 1, it is GRPO.

A response is trained behind its question, and π₀ of the ratio is the policy at the step's start behind that same text,
whatever the response was drawn under. So ratios begin at 1, as eq. 14 has them, and nothing corrects for where the
response came from: a revision that the bare question would hardly have led to is learned as if it had.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vigneron.batch import Batch
from vigneron.config import GrapeConfig
from vigneron.data.prompts import Row
from vigneron.methods import grpo
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rollout.grape import EarlierResponse, GrapeRollout, Memory, Mix
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rubric.model import Category
from vigneron.rubric.prompts import feedback_on, generation_prompt, revision_prompt
from vigneron.rubric.rows import category_of
from vigneron.sources.verdict import Verdict
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.training_prompt import corrected, score_after_training_prompt


def build(parts: Parts, options: GrapeConfig) -> Method:
    reward = parts.reward.function  # type: ignore[attr-defined]
    assert isinstance(reward, RubricReward)
    assert isinstance(parts.rollout, OnPolicy)
    plain = grpo.build(parts, options)

    def category(row: Row) -> Category:
        rubric = reward.live_rubric.rubric
        return rubric.categories[category_of(rubric, row, 0, "the data")]

    def revision(row: Row, earlier: EarlierResponse) -> object:
        return revision_prompt(category(row), row["prompt"], earlier.response, earlier.feedback)

    rollout = GrapeRollout(
        parts.rollout,
        Mix(**options.mix.model_dump()),
        Memory(),
        lambda row: generation_prompt(category(row), row["prompt"]),
        revision,
        options.trained_under,
    )

    def advantage(batch: Batch) -> Batch:
        """A = R − mean of the group, after eq. 15; with log π₀ after the training prompt."""
        rollout.memory.remember(batch, _feedback)
        batch = plain.advantage(score_after_training_prompt(batch, parts))
        return batch if options.correction == "none" else corrected(batch)

    notices = plain.notices
    if options.trained_under == "generation_prompt":
        notices = (*notices, "held-out prompts are answered without the generation prompt that is trained under")
    return replace(plain, rollout=rollout, advantage=advantage, memory=rollout.memory, notices=notices)


def _feedback(logged: Mapping[str, Any]) -> str:
    """The verdicts logged with a sample, as the prompt of a revision shows them."""
    return feedback_on({name: Verdict(**entry) for name, entry in logged["items"].items()})
