"""Rewards of the reference's samples of every training prompt, drawn once and kept in the run's folder, part by part
(training/drawn_parts.py)."""

import json
import math
from typing import Any

import torch

from vigneron.data.prompts import Row
from vigneron.distributed import ranks
from vigneron.files import append_line, writing
from vigneron.rollout.build import build_rollout
from vigneron.timing import phase, progress
from vigneron.training.drawn_parts import fingerprint, read_parts, write_parts
from vigneron.training.parts import Parts

Rewards = list[list[float]]

FILE = "reference_rewards.jsonl"
PROMPTS = 64
"""Prompts of a part."""
STEP = 2**42
"""Keeps these draws apart from those of training steps."""


def reference_rewards(parts: Parts, samples: int) -> Rewards:
    """Rewards of `samples` samples of the reference for each training row; NaN: missing.

    Called before a checkpoint is loaded, when the policy is the reference. Leaves reward and random state as they were.
    """
    rows, file = parts.curriculum.rows, None if parts.folder is None else parts.folder / FILE
    drawn_with = _fingerprint(parts, samples)
    done_parts: list[Rewards] = ranks.run_on_rank0(lambda: read_parts(file, drawn_with, _from_json))
    done = [rewards for part in done_parts for rewards in part]
    if file is not None and ranks.is_rank0():
        with writing(file):  # without a line that a kill cut
            write_parts(file, drawn_with, map(_as_json, done_parts))
    rollout = build_rollout(parts.config.model_copy(update={"group_size": samples}), parts.policy)
    before = parts.reward.scalars() if hasattr(parts.reward, "scalars") else None
    devices = [parts.policy.device] if parts.policy.device.type == "cuda" else []
    with phase("draw the reference's samples"), torch.random.fork_rng(devices):
        for first in range(len(done), len(rows), PROMPTS):
            progress("draw the reference's samples", first, len(rows))
            torch.manual_seed(parts.config.seed + first)
            batch = parts.reward(rollout(rows[first : first + PROMPTS], STEP, first), whole_step=False)
            part = batch.signals.rewards_B.view(-1, samples).tolist()
            if file is not None and ranks.is_rank0():
                with writing(file):
                    append_line(file, json.dumps(_as_json(part)))
            done += part
    if before is not None:
        parts.reward.load(before)  # type: ignore[attr-defined]
    return done


def row_key(row: Row) -> str:
    """A row by its contents; columns without a value do not count."""
    return json.dumps({name: value for name, value in row.items() if value is not None}, sort_keys=True)


def _from_json(part: Any) -> Rewards:
    return [[math.nan if reward is None else float(reward) for reward in rewards] for rewards in part]


def _as_json(part: Rewards) -> list[list[float | None]]:
    return [[None if math.isnan(reward) else reward for reward in rewards] for rewards in part]


def _fingerprint(parts: Parts, samples: int) -> str:
    config, rows = parts.config, [row_key(row) for row in parts.curriculum.rows]
    keys = ("model", "sampling", "reward", "seed", "max_new_tokens")
    written = {key: value for key, value in config.model_dump(mode="json").items() if key in keys}
    written["model"] = {key: written["model"][key] for key in ("name", "chat", "lora")}
    written["reward"].pop("missing_limit", None)  # may change on resume
    if not written["sampling"]["stop"]:  # as before the key existed
        del written["sampling"]["stop"]
    return fingerprint([written, rows, samples])
