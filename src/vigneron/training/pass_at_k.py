"""pass@k of a run's model: sampled completions of held-out prompts, checked."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.intervals import bootstrap_interval
from vigneron.core.pass_at_k import pass_at_k
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.rewards.checkers import NEEDS, build_run_check
from vigneron.rollout.build import sampling_rollout
from vigneron.run_data.readers import checker_name
from vigneron.training.conversation_alerts import conversation_warnings


@dataclass(frozen=True)
class PassAtK:
    """Mean pass@k over prompts, with the bounds of its 95 % interval (bootstrap over prompts)."""

    k: int
    value: float
    low: float
    high: float
    samples: int
    """Of each prompt."""
    prompts: int
    """Those of which every sample has a verdict."""
    left_out: int
    """Prompts with a missing verdict."""


def measure_pass_at_k(
    config: Config, policy: Policy, rows: Sequence[Row], ks: Sequence[int], samples: int, seed: int | None = None
) -> list[PassAtK]:
    check_k(ks, samples)
    if config.method.trains == "scorer":
        raise UserError(f"pass@k: `method: {config.method.name}` trains a reward model, which cannot generate text")
    if not rows:
        raise UserError("pass@k: no rows to evaluate on: set data.held_out, or give --file")
    name = checker_name(config)
    seed = config.seed if seed is None else seed
    batch = sampled_and_checked(config, policy, rows, samples, seed)
    by_prompt: dict[int, list[bool | None]] = {}
    for group, verdict in zip(batch.samples.group_B.tolist(), batch.signals.correct or (), strict=True):
        by_prompt.setdefault(group, []).append(verdict)
    counts = [sum(map(bool, verdicts)) for verdicts in by_prompt.values() if None not in verdicts]
    if not counts:
        if failed := conversation_warnings(batch, config).get("environment"):
            raise UserError(f"pass@k: no prompt has a verdict for all of its samples: {failed}")
        why = f"needs the column `{NEEDS[name]}`" if name in NEEDS else "returned None"
        raise UserError(f"pass@k: no prompt has a verdict for all of its samples: the checker '{name}' {why}")
    correct_P = torch.tensor(counts)
    done = []
    for k in ks:
        values_P = pass_at_k(correct_P, samples=samples, k=k)
        low, high = bootstrap_interval(values_P, seed=seed)
        mean = float(values_P.mean())
        done.append(PassAtK(k, mean, low, high, samples, len(counts), len(by_prompt) - len(counts)))
    return done


def sampled_and_checked(config: Config, policy: Policy, rows: Sequence[Row], samples: int, seed: int) -> Batch:
    """So many samples of each row and their verdicts, as the run samples and checks."""
    batch = sampling_rollout(config, policy, group_size=samples, seed=seed)(rows)
    return build_run_check(config, checker_name(config))(batch)


def check_k(ks: Sequence[int], samples: int) -> None:
    if samples < 1:
        raise UserError(f"pass@k: {samples} samples of each prompt: give 1 or more")
    if not ks:
        raise UserError("pass@k: give at least one k")
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"pass@k: k is {k}: it lies between 1 and the {samples} samples of each prompt")
