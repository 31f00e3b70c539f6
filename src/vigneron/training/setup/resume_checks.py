"""Checks on resume: which changes of the config and the data are allowed, and how they are reported."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.core.schedule import learning_rate_factor
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import Data
from vigneron.validation import shown_value
from vigneron.values import differing_keys, flatten

# Keys that may change on resume: length, logging, checkpoints, hardware.
FREE = (
    "steps",
    "eval_every",
    "save_every",
    "keep_last",
    "keep_best",
    "skip_nonfinite",
    "microbatch_tokens",
    "recipe",
    "about",
    "trackers",
    "scale",
    "model.device",
    "model.dtype",
    "model.compile",
    "model.graphs",
    "model.activation_checkpointing",
    "reward.missing_limit",
)
# Keys that cannot change, even with --allow-changes: the checkpoint's state would not fit.
FIXED = (
    "model.name",
    "model.lora",
    "model.chat",
    "method.name",
    "method.form",
    "method.baseline",
    "method.critic.network",
)
# Hex digits of each row's hash, by which changed rows are reported.
DIGEST_LENGTH = 8
DATA_CHANGED = "the rows in data/ differ from those that it was trained on"


def data_record(data: Data) -> dict[str, str]:
    """What a checkpoint stores about the data: a hash of all rows, and a short hash of each."""
    whole = hashlib.sha256(json.dumps([data.train, data.held_out], sort_keys=True).encode()).hexdigest()
    return {"sha256": whole, "train": _digests(data.train), "held_out": _digests(data.held_out)}


def _digests(rows: Sequence[Row]) -> str:
    return "".join(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH] for row in rows)


def check_changes(path: Path, scalars: Mapping[str, Any], config: Config, data: Data, *, allow: bool) -> list[str]:
    """The changes since the checkpoint, one line each. Raises for those that are not allowed."""
    before = scalars.get("config")
    changed = differences(_with_defaults(before), config.model_dump(mode="json")) if before is not None else {}
    lines = {key: f"{key} was {shown_value(old)}, is {shown_value(new)}" for key, (old, new) in changed.items()}
    rows = data_changes(scalars.get("data"), data)
    never = [line for key, line in lines.items() if _among(key, FIXED)]
    if never:
        raise UserError("\n".join(f"{path}: {line}: it cannot be changed on resume" for line in never))
    refused = [line for key, line in lines.items() if not _among(key, FREE)] + rows
    if refused and not allow:
        changes = [f"{path}: {line}" for line in refused]
        hint = f"undo the change, or run `vigneron resume {path} --allow-changes`"
        raise UserError("\n".join([*changes, hint]))
    return [*lines.values(), *rows]


def schedule_changes(scalars: Mapping[str, Any], config: Config, done: int) -> list[str]:
    """A line if other `steps` change the learning rate after the `done` steps: a schedule runs over all steps."""
    before, optimizer = (scalars.get("config") or {}).get("steps"), config.optimizer
    if before is None or not done or not config.method.steps_by_gradient:
        return []

    def rate(step: int, steps: int) -> float:
        factor = learning_rate_factor(step - 1, steps, shape=optimizer.schedule, warmup=optimizer.warmup_steps)
        return optimizer.actor_lr * factor

    last, after = rate(done, before), rate(done + 1, config.steps)
    if config.steps == done or after == rate(done + 1, before):
        return []
    return [
        f"`optimizer.schedule: {optimizer.schedule}` now runs over {config.steps} steps: the learning rate goes from "
        f"{last:.3g} at the start of step {done} to {after:.3g} at the start of step {done + 1}. To keep it, "
        f"resume with `--allow-changes optimizer.schedule=constant optimizer.actor_lr={last:.3g}`"
    ]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values; None for a missing one."""
    flat = [{key: value for key, value in flatten(each).items() if value != {}} for each in (before, now)]
    return {key: (old, new) for key, (old, new) in differing_keys(flat, absent=None).items()}


def data_changes(record: Any, data: Data) -> list[str]:
    now = data_record(data)
    if record is None or record == now:
        return []
    if not isinstance(record, dict):  # earlier versions stored only the hash of all rows
        return [] if record == now["sha256"] else [DATA_CHANGED]
    lines = [line for part in ("train", "held_out") if (line := _rows_changed(part, record[part], now[part]))]
    return lines or [DATA_CHANGED]


def _rows_changed(part: str, before: str, now: str) -> str | None:
    old, new = ([text[at : at + DIGEST_LENGTH] for at in range(0, len(text), DIGEST_LENGTH)] for text in (before, now))
    if old == new:
        return None
    first = next(n for n, (a, b) in enumerate(zip_longest(old, new), start=1) if a != b)
    return f"data/{part}.jsonl had {len(old)} rows, has {len(new)}; the first row that differs is row {first}"


def _among(key: str, keys: Sequence[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def _with_defaults(before: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that a later version of Vigneron added get their defaults."""
    try:
        return check_config(before, "the checkpoint's config").model_dump(mode="json")
    except UserError:
        return dict(before)
