"""A batch that could not be trained on, as files that a person can look into."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vigneron.batch import Batch
from vigneron.errors import reason
from vigneron.files import write_atomically

# Hidden states are large, and follow from the rest.
LEFT_OUT = ("prompt_hidden_BH", "reference_hidden_BTH", "previous_hidden_BTH")


def dump_batch(folder: Path, step: int, batch: Batch | None, why: str) -> str:
    """`dumps/step-N/`: tensors, and texts with what was said of them. Returns where it is, or why it is nowhere."""
    where = folder / "dumps" / f"step-{step}"
    values = {} if batch is None else {f.name: getattr(batch, f.name) for f in fields(batch) if f.name not in LEFT_OUT}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in values.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in values.items() if k not in tensors and v is not None}
    try:
        where.mkdir(parents=True, exist_ok=True)
        save_file(tensors, where / "batch.safetensors")
        text = json.dumps({"step": step, "why": why, **_plain(rest)}, ensure_ascii=False, indent=1)
        write_atomically(where / "batch.json", text)
    except (OSError, SafetensorError) as error:  # what happened is said all the same
        return f"could not be written: {reason(error)}"
    return f"is in '{where}'"


def _plain(value: Any) -> Any:
    """JSON has no NaN: as text, so that it can be seen."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
