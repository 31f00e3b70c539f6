"""Going on with a run whose config or data are not what they were: what may change, and what is said of it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import Data
from vigneron.validation import shown_value
from vigneron.values import differing_keys, flatten

# What a run can go on with without becoming another one: its length, what is kept and said, and where it runs.
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
# What a checkpoint's state does not fit, whatever is allowed.
FIXED = (
    "model.name",
    "model.lora",
    "model.chat",
    "method.name",
    "method.form",
    "method.baseline",
    "method.critic.network",
)
# A short digest of each row, so that the rows that changed can be named.
DIGEST = 8


def data_record(data: Data) -> dict[str, str]:
    """What a checkpoint keeps of the rows: a hash of all, and a few letters of each one's."""
    whole = hashlib.sha256(json.dumps([data.train, data.held_out], sort_keys=True).encode()).hexdigest()
    return {"sha256": whole, "train": _digests(data.train), "held_out": _digests(data.held_out)}


def _digests(rows: Sequence[Row]) -> str:
    return "".join(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:DIGEST] for row in rows)


def check_changes(path: Path, scalars: Mapping[str, Any], config: Config, data: Data, *, allow: bool) -> list[str]:
    """What changed since a checkpoint was written, in a line each; refused where it makes another run of it."""
    before = scalars.get("config")
    changed = differences(_with_defaults(before), config.model_dump(mode="json")) if before is not None else {}
    lines = {key: f"{key} was {shown_value(old)}, is {shown_value(new)}" for key, (old, new) in changed.items()}
    rows = data_changes(scalars.get("data"), data)
    never = [line for key, line in lines.items() if _among(key, FIXED)]
    if never:
        raise UserError("\n".join(f"{path}: {line}: a run cannot go on with another one" for line in never))
    refused = [line for key, line in lines.items() if not _among(key, FREE)] + rows
    if refused and not allow:
        said = [f"{path}: {line}" for line in refused]
        raise UserError("\n".join([*said, f"put it back, or `vigneron resume {path} --allow-changes`"]))
    return [*lines.values(), *rows]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values are not the same, with both of them; None where one has none."""
    flat = [{key: value for key, value in flatten(each).items() if value != {}} for each in (before, now)]
    return {key: (old, new) for key, (old, new) in differing_keys(flat, absent=None).items()}


def data_changes(record: Any, data: Data) -> list[str]:
    now = data_record(data)
    if record is None or record == now:
        return []
    if not isinstance(record, dict):  # of an earlier version, which kept a hash of all
        return [] if record == now["sha256"] else ["the rows in data/ are not the ones it was trained on"]
    lines = [line for part in ("train", "held_out") if (line := _rows_changed(part, record[part], now[part]))]
    return lines or ["the rows in data/ are not the ones it was trained on"]


def _rows_changed(part: str, before: str, now: str) -> str | None:
    old, new = ([text[at : at + DIGEST] for at in range(0, len(text), DIGEST)] for text in (before, now))
    if old == new:
        return None
    first = next(n for n, (a, b) in enumerate(zip_longest(old, new), start=1) if a != b)
    return f"data/{part}.jsonl had {len(old)} rows, has {len(new)}; the first that is not the same is row {first}"


def _among(key: str, keys: Sequence[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def _with_defaults(before: Mapping[str, Any]) -> dict[str, Any]:
    """A key that came with a later version of Vigneron has its default."""
    try:
        return check_config(before, "the checkpoint's config").model_dump(mode="json")
    except UserError:
        return dict(before)
