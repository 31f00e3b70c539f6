"""pass@k of a run's model: sampled completions of held-out prompts, checked."""

import math
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
    """Those of which at least k samples have a verdict. Without any, the mean and its bounds are NaN."""
    left_out: int
    """The other prompts."""
    missing: int
    """Samples without a verdict, of all prompts."""


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
    done = [estimate(list(by_prompt.values()), k, samples, seed) for k in ks]
    if not any(of_k.prompts for of_k in done):
        none = f"pass@k: no prompt has a verdict for at least {min(ks)} of its samples"
        if failed := conversation_warnings(batch, config).get("environment"):
            raise UserError(f"{none}: {failed}")
        why = f"needs the column `{NEEDS[name]}`" if name in NEEDS else "returned None"
        raise UserError(f"{none}: the checker '{name}' {why}")
    return done


def estimate(verdicts: Sequence[Sequence[bool | None]], k: int, samples: int, seed: int) -> PassAtK:
    """pass@k from the verdicts of each prompt. A sample without one, as of a conversation that failed, is as if it had
    not been drawn; a prompt that keeps fewer than k is left out."""
    known = [[bool(verdict) for verdict in of_prompt if verdict is not None] for of_prompt in verdicts]
    enough = [of_prompt for of_prompt in known if len(of_prompt) >= k]
    value = low = high = math.nan
    if enough:
        correct_P = torch.tensor([sum(of_prompt) for of_prompt in enough])
        samples_P = torch.tensor([len(of_prompt) for of_prompt in enough])
        values_P = pass_at_k(correct_P, samples=samples_P, k=k)
        value, (low, high) = float(values_P.mean()), bootstrap_interval(values_P, seed=seed)
    missing = sum(samples - len(of_prompt) for of_prompt in known)
    return PassAtK(k, value, low, high, samples, len(enough), len(known) - len(enough), missing)


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
