"""Draw samples from a recipe's model and score them by its reward: rows that `topr` and `oreo` read."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.masked import masked_sum
from vigneron.data.prompts import Row
from vigneron.data.recorded import RECORD
from vigneron.errors import UserError
from vigneron.files import check_new_file, write_for_user
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.rollout.build import build_rollout
from vigneron.run_data.load import checker_name, load_data
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.timing import phase, progress
from vigneron.training.setup.resolve import newest_weights, resolved

PROMPTS = 64
"""Prompts that are sampled for at a time."""
REWARD = "reward"


@dataclass(frozen=True)
class Recording:
    """The files that were written, and what is in them."""

    file: Path
    rows: int
    mean_reward: float
    held_out: Path | None
    """The held-out prompts; None if there are none."""


def record_samples(config: Config, out: Path, samples: int, notice: Callable[[str], None]) -> Recording:
    """`samples` samples of each training prompt, with reward and log-prob, in `out`; the held-out rows beside it."""
    if config.method.reads != "prompts":
        raise UserError(
            f"`method: {config.method.name}` samples nothing: give a recipe that does, e.g. grpo-ladder, or the method "
            "with `samples: sampled`"
        )
    held_out_file = out.with_suffix(".held_out.jsonl")
    for path in (out, held_out_file):
        check_new_file(path, [".jsonl"])
    if not out.absolute().parent.is_dir():
        raise UserError(f"cannot write '{out}': the folder '{out.absolute().parent}' does not exist")
    config = resolved(config)
    data = with_parent_answers(config, load_data(config), notice)
    rows = list(_recorded(config, data.train, samples))
    _write(out, rows)
    if data.held_out:
        _write(held_out_file, data.held_out)
    rewards = [row[REWARD] for row in rows if row[REWARD] is not None]
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    return Recording(out, len(rows), mean, held_out_file if data.held_out else None)


def _recorded(config: Config, rows: Sequence[Row], samples: int) -> Iterator[Row]:
    seed_everything(config.seed)
    with phase("load the model"):
        policy = policy_from_config(config)
    built = build_reward(
        config.reward,
        load_checker(checker_name(config)),
        device=config.model.device,
        weights=partial(newest_weights, key="reward.file"),
    )
    reward = ApplyReward.of(config, built)
    rollout = build_rollout(config.model_copy(update={"group_size": samples}), policy)
    try:
        for first in range(0, len(rows), PROMPTS):
            progress("sample", first, len(rows))
            part = rows[first : first + PROMPTS]
            yield from _rows_of(reward(rollout(part, 0, first)), [row for row in part for _ in range(samples)])
    finally:
        reward.close()


def _rows_of(batch: Batch, rows: Sequence[Row]) -> Iterator[Row]:
    sums = masked_sum(batch.samples.behaviour_BT, batch.samples.mask_BT).tolist()
    rewards, cut = batch.signals.rewards_B.tolist(), batch.samples.truncated_B.tolist()
    for at, row in enumerate(rows):
        own = {name: value for name, value in row.items() if name not in (*RECORD, "messages")}
        yield {
            **own,
            "completion": batch.samples.completions[at],
            REWARD: rewards[at] if rewards[at] == rewards[at] else None,
            **({"logprobs": min(sums[at], 0.0)} if sums[at] == sums[at] else {}),  # unknown with `sampling.prompt`
            "token_ids": list(batch.samples.completion_lists()[at]),
            **({"truncated": True} if cut[at] else {}),
        }


def _write(path: Path, rows: Sequence[Row]) -> None:
    write_for_user(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
