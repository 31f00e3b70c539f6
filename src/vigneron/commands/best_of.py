"""`vigneron eval RUN --best-of N --by MODEL`: the sample that a model ranks first, against the mean and pass@N."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vigneron.api import load_run
from vigneron.batch import Batch
from vigneron.core.intervals import wilson
from vigneron.core.pass_at_k import pass_at_k
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.reward_model import load_reward_model, reward_model_kind
from vigneron.rewards.apply import RewardFunction
from vigneron.rewards.process import ranking_reward
from vigneron.run_store.folder import RunFolder
from vigneron.training.pass_at_k import sampled_and_checked
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

    def interval(self, share: float) -> tuple[float, float]:
        """Wilson's 95 % interval over prompts. It is conservative for `mean`: a prompt's share of right samples varies
        less than one verdict."""
        return wilson(share * self.prompts, self.prompts)


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
    if trained.config.environment is not None and reward_model_kind(scorer) == "process":
        raise UserError(
            f"--by: '{by}' scores the steps of one answer, and this run's samples are conversations: choose a reward "
            "or preference model"
        )
    batch = sampled_and_checked(trained.config, trained.policy, rows, count, seed)
    return ranked(batch, ranking_reward(scorer, combine), count)


def ranked(batch: Batch, reward: RewardFunction, count: int) -> BestOf:
    """Of a batch with groups of `count` samples. The first of equal scores is chosen."""
    correct = batch.signals.correct or (None,)
    if None in correct:
        raise UserError("the checker cannot judge every sample: each row needs the reference in the column `answer`")
    groups: dict[int, list[int]] = {}
    for sample, group in enumerate(batch.samples.group_B.tolist()):
        groups.setdefault(group, []).append(sample)
    columns = {
        "prompts": batch.samples.prompts,
        "completions": batch.samples.completions,
        **{name: values for name, values in batch.samples.columns.items() if name == "tools"},
    }
    chosen = []
    for group in groups.values():  # a preference model compares samples of one prompt, which two groups may share
        scores = reward(**{name: [values[sample] for sample in group] for name, values in columns.items()})
        chosen.append(max(zip(group, scores, strict=True), key=lambda scored: (scored[1], -scored[0]))[0])
    right_P = torch.tensor([sum(bool(correct[sample]) for sample in group) for group in groups.values()])
    return BestOf(
        len(groups),
        count,
        sum(bool(correct[sample]) for sample in chosen) / len(groups),
        float(pass_at_k(right_P, samples=count, k=1).mean()),
        float(pass_at_k(right_P, samples=count, k=count).mean()),
    )


def print_best_of(console: Console, result: BestOf, by: str) -> None:
    table = Table("", "accuracy", "95 % interval", box=None)
    named = (
        ("mean of samples", result.mean),
        (f"best of {result.samples} by {by}", result.accuracy),
        (f"pass@{result.samples}", result.passed),
    )
    for name, share in named:
        low, high = result.interval(share)
        table.add_row(name, f"{share:.3f}", f"{low:.3f} – {high:.3f}")
    console.print(table)
    console.print(f"{result.prompts} prompts; interval: Wilson's, over prompts", style="dim")
