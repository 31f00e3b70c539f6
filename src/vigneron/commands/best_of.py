"""`vigneron eval RUN --best-of N --by MODEL`: the sample that a model ranks first, against the mean and pass@N."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vigneron.api import load_run
from vigneron.batch import Batch
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.reward_model import load_reward_model
from vigneron.rewards.apply import RewardFunction
from vigneron.rewards.checkers import build_check
from vigneron.rewards.process import ranking_reward
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.run_data.load import checker_name
from vigneron.run_store.folder import RunFolder
from vigneron.training.setup.resolve import newest_weights


@dataclass(frozen=True)
class BestOf:
    """Shares of prompts, each over N samples of it."""

    prompts: int
    samples: int
    accuracy: float
    """Of the sample that the model ranks first."""
    mean: float
    """Of a sample: what a random choice gets."""
    passed: float
    """pass@N: of the best possible choice."""

    def interval(self, share: float) -> float:
        """Half the width of a 95 % interval."""
        return 1.96 * math.sqrt(share * (1 - share) / self.prompts)


def best_of(
    run: Path,
    by: str,
    count: int,
    rows: Sequence[Row] | None = None,
    *,
    step: int | None = None,
    combine: Any = "min",
    seed: int = 0,
) -> BestOf:
    """Draws `count` samples of each held-out prompt as training does, and checks the one with the highest score."""
    trained = load_run(run, step=step)
    if trained.config.method.trains == "scorer":
        raise UserError(f"`method: {trained.config.method.name}` trains a reward model, which cannot generate text")
    rows = RunFolder(trained.folder).data(trained.config).held_out if rows is None else rows
    if not rows:
        raise UserError("no rows to evaluate on: set data.held_out, or give --file")
    device = str(trained.policy.device)
    scorer = load_reward_model(newest_weights(by, "--by"), start=False, device=device, dtype="float32", key="--by")
    rollout = OnPolicy(trained.policy, sampling_of(trained.config), trained.config.max_new_tokens, count, seed)
    batch = build_check(checker_name(trained.config))(rollout(rows))
    return ranked(batch, ranking_reward(scorer, combine), count)


def ranked(batch: Batch, reward: RewardFunction, count: int) -> BestOf:
    """Of a batch whose groups are `count` samples in a row. The first of equal scores is chosen."""
    correct = batch.signals.correct or (None,)
    if None in correct:
        raise UserError("the checker cannot judge every sample: each row needs the reference in the column `answer`")
    scores = reward(prompts=list(batch.samples.prompts), completions=list(batch.samples.completions))
    groups = [range(at, at + count) for at in range(0, len(batch), count)]
    chosen = [max(group, key=lambda sample: (scores[sample], -sample)) for group in groups]
    total = len(groups)
    return BestOf(
        total,
        count,
        sum(bool(correct[sample]) for sample in chosen) / total,
        sum(map(bool, correct)) / len(batch),
        sum(any(correct[sample] for sample in group) for group in groups) / total,
    )


def print_best_of(console: Console, result: BestOf, by: str) -> None:
    table = Table("", "accuracy", "±", box=None)
    named = (
        ("mean of samples", result.mean),
        (f"best of {result.samples} by {by}", result.accuracy),
        (f"pass@{result.samples}", result.passed),
    )
    for name, share in named:
        table.add_row(name, f"{share:.3f}", f"{result.interval(share):.3f}")
    console.print(table)
    console.print(f"{result.prompts} prompts; ± is half a 95 % interval over prompts", style="dim")
