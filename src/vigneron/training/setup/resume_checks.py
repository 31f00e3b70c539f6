"""Checks on resume: which changes of the config and the data are allowed, and how they are reported."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.core.schedule import learning_rate_factor
from vigneron.data.digests import RECORD_BYTES, digest_of
from vigneron.data.prompts import Row
from vigneron.data.rows import record_of_rows
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import Data
from vigneron.run_data.stored import PARTS, LostRows
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
    "model.memory_gb",
    "model.cache_gb",
    "model.offload_reference",
    "optimizer.offload",
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
DIGITS = 2 * RECORD_BYTES
HASHED_TOGETHER = 10_000
DATA_CHANGED = "the rows in data/ differ from those that it was trained on"


def data_record(data: Data) -> dict[str, str]:
    """What a checkpoint stores about the data: hashes of the rows of each part, and of not too many rows one of all."""
    parts = {"train": record_of_rows(data.train), "held_out": record_of_rows(data.held_out)}
    few = len(data.train) + len(data.held_out) <= HASHED_TOGETHER
    return {"sha256": _hash_of_all(data), **parts} if few else parts


def _hash_of_all(data: Data) -> str:
    """SHA-256 of both parts as JSON."""
    whole = hashlib.sha256(b"[")
    for part, after in ((data.train, ", "), (data.held_out, "]")):
        whole.update(b"[")
        for number, row in enumerate(part):
            whole.update(((", " if number else "") + json.dumps(row, sort_keys=True)).encode())
        whole.update(f"]{after}".encode())
    return whole.hexdigest()


def check_changes(path: Path, scalars: Mapping[str, Any], config: Config, data: Data, *, allow: bool) -> list[str]:
    """The changes since the checkpoint, one line each. Raises for those that are not allowed."""
    before = scalars.get("config")
    changed = differences(_with_defaults(before), config.model_dump(mode="json")) if before is not None else {}
    if changed.get("model.chat_date", ("",))[0] is None:  # a run of an earlier version, which kept no date
        changed.pop("model.chat_date")
    lines = {key: f"{key} was {shown_value(old)}, is {shown_value(new)}" for key, (old, new) in changed.items()}
    rows = data_changes(scalars.get("data"), data)
    never = [line for key, line in lines.items() if _among(key, FIXED)]
    if never:
        raise UserError("\n".join(f"{path}: {line}: it cannot be changed on resume" for line in never))
    refused = [line for key, line in lines.items() if not _among(key, FREE)] + rows
    if refused and not allow:
        changes = [f"{path}: {line}" for line in refused]
        hint = f"undo the change, or run `{_resume_with(path, changed, config)}`"
        raise UserError("\n".join([*changes, hint]))
    return [*lines.values(), *rows]


def _resume_with(path: Path, changed: Mapping[str, Any], config: Config) -> str:
    """The command that resumes with the changed keys, which may have been overrides."""
    now = flatten(config.model_dump(mode="json"))
    values = {key: now[key] for key in changed if key in now}
    keys = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    return shlex.join(["vigneron", "resume", str(path), "--allow-changes", *keys])


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
    lost = [rows.reason for rows in (data.train, data.held_out) if isinstance(rows, LostRows)]
    if lost or record is None:
        return lost
    if not isinstance(record, dict):  # the first versions stored only the hash of all rows
        return [] if record == _hash_of_all(data) else [DATA_CHANGED]
    changes = [line for part in PARTS if (line := _rows_changed(part, record[part], getattr(data, part)))]
    if not changes and "sha256" in record and record["sha256"] != _hash_of_all(data):
        return [DATA_CHANGED]
    return changes


def _rows_changed(part: str, before: str, rows: Sequence[Row]) -> str | None:
    now = record_of_rows(rows)
    if before == now:
        return None
    if " " in before:  # one hash of many rows
        return f"data/{part}.jsonl had {before.split()[0]} rows, has {len(rows)}; some of them differ"
    if " " in now:
        now = "".join(digest_of(row)[:RECORD_BYTES].hex() for row in rows)
    old, new = ([text[at : at + DIGITS] for at in range(0, len(text), DIGITS)] for text in (before, now))
    if old == new:
        return None
    first = next(n for n, (a, b) in enumerate(zip_longest(old, new), start=1) if a != b)
    return f"data/{part}.jsonl had {len(old)} rows, has {len(new)}; the first row that differs is row {first}"


def _among(key: str, keys: Sequence[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def _with_defaults(before: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that a later version of Vigneron added get their defaults."""
    try:
        return check_config(before, "the checkpoint's config", stored=True).model_dump(mode="json")
    except UserError:
        return dict(before)
