"""Audit of a rubric reward at each evaluation: canaries (answers that deserve nothing), a held-out rubric or judge."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config, RubricRewardConfig
from vigneron.data.prompts import Row
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.rubric_build import build_rubric_reward
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rubric.rows import category_of
from vigneron.run_data.load import Data
from vigneron.run_store.folder import RunFolder
from vigneron.sources.placement import IN_PROCESS, ModelPlacement
from vigneron.training.method import Metrics

# Questions per category that every canary answers.
QUESTIONS = 2
# A canary that earns more than this share of a perfect answer's reward causes a warning.
FOOLED = 0.5


@dataclass(frozen=True)
class RubricAudit:
    """`audit(batch)`: metrics of the canaries and of the held-out rubric on a batch of held-out completions."""

    reward: RubricReward
    questions: Sequence[Row]
    other: ApplyReward | None = None
    """The reward of `held_out_file` or `held_out_judge`, which is not trained on."""

    def __call__(self, batch: Batch) -> Metrics:
        metrics = self._canaries()
        if self.other is not None:
            scored = self.other(batch.with_signals(metrics={}))  # without the metrics of the trained rubric
            present = scored.signals.rewards_B[~scored.signals.rewards_B.isnan()]
            if len(present):
                metrics["held_out_rubric/reward"] = float(present.mean())
            metrics |= {
                f"held_out_rubric/{name.removeprefix('reward/')}": value
                for name, value in scored.signals.metrics.items()
            }
        return metrics

    def _canaries(self) -> Metrics:
        """Rewards of the canaries as shares of a perfect answer's: the mean per category, and the largest."""
        texts = self.reward.live_rubric.rubric.canaries
        rows = [row for row in self.questions for _ in texts]
        answers = [text for _ in self.questions for text in texts]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names if name != "prompt"}
        earned: defaultdict[str, list[float]] = defaultdict(list)
        for category, reward in (
            self.reward.normalised_rewards([row["prompt"] for row in rows], answers, columns) if rows else []
        ):
            if reward is not None:
                earned[category].append(reward)
        if not earned:
            return {}
        means = {f"canary/{category}": sum(values) / len(values) for category, values in earned.items()}
        return {**means, "canary/largest": max(max(values) for values in earned.values())}


def build_rubric_audit(
    config: Config,
    reward: Any,
    data: Data,
    folder: RunFolder,
    *,
    notice: Callable[[str], None] = lambda text: None,
    placement: ModelPlacement = IN_PROCESS,
) -> RubricAudit | None:
    """The audit of a rubric reward; None for other rewards."""
    if not isinstance(reward, RubricReward) or not isinstance(config.reward, RubricRewardConfig):
        return None
    options, rubric = config.reward, reward.live_rubric.rubric
    by_category: defaultdict[str, list[Row]] = defaultdict(list)
    for number, row in enumerate(data.held_out or data.train, start=1):
        rows = by_category[category_of(rubric, row, number, "the data")]
        if len(rows) < QUESTIONS:
            rows.append(row)
    other = None
    if options.held_out_file is not None or options.held_out_judge is not None:
        built = build_rubric_reward(
            options,
            file=folder.held_out_rubric if options.held_out_file is not None else reward.live_rubric.path,
            judge=options.held_out_judge,
            cache=folder.path / "embeddings.sqlite",
            device=config.model.device,
            notice=notice,
            missing_limit=1.0,
            where="reward.held_out_judge" if options.held_out_judge is not None else "reward.judge",
            placement=placement,
        )
        other = ApplyReward(built, missing_limit=1.0)
    return RubricAudit(reward, [row for rows in by_category.values() for row in rows], other)


def explain_canaries(metrics: Metrics) -> tuple[str, ...]:
    """A warning if a canary earns too much: the judge cannot be trusted."""
    largest = metrics.get("eval/canary/largest")
    if largest is None or largest <= FOOLED:
        return ()
    return (
        f"an answer that deserves nothing earns more than {FOOLED:.0%} of a perfect answer's reward (by category: "
        "eval/canary/…): check the rubric's judged items before you trust their scores",
    )
