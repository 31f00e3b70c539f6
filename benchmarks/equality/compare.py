"""Whether two run folders hold the same: metrics, samples and the last checkpoint, exactly. Knows files, not code."""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

Renamed = Mapping[str, str]
NOT_COMPARED = ("config",)
"""Scalars of a checkpoint: keys of the config may be renamed."""


@dataclass
class Comparison:
    """How much was compared, and the first difference if there is one."""

    steps: int = 0
    metrics: int = 0
    samples: int = 0
    tensors: int = 0
    difference: str | None = None

    def add(self, other: "Comparison") -> None:
        self.steps += other.steps
        self.metrics += other.metrics
        self.samples += other.samples
        self.tensors += other.tensors
        self.difference = self.difference or other.difference


@dataclass(frozen=True)
class Renames:
    """Old names by new ones."""

    metrics: Renamed = field(default_factory=dict)
    sample_fields: Renamed = field(default_factory=dict)
    """Columns of the store of samples, and keys of its `extras`."""
    tensors: Renamed = field(default_factory=dict)
    scalars: Renamed = field(default_factory=dict)


def compare_runs(old: Path, new: Path, renames: Renames) -> Comparison:
    """Two run folders. Counts stop at the first difference of each part."""
    found = Comparison()
    for part in (compare_metrics, compare_samples, compare_checkpoints):
        found.add(part(old, new, renames))
    if found.difference is None and not (found.metrics and found.tensors):
        found.difference = "nothing to compare"
    return found


def compare_metrics(old: Path, new: Path, renames: Renames) -> Comparison:
    found = Comparison()
    pairs = zip_longest(_records(old / "metrics.jsonl"), _records(new / "metrics.jsonl"))
    for number, (before, after) in enumerate(pairs, start=1):
        if before is None or after is None:
            found.difference = f"metrics.jsonl: line {number} is missing in {'OLD' if before is None else 'NEW'}"
            return found
        step = before.get("step")
        found.difference = difference_of(renamed(before, renames.metrics), after, f"step {step}: ")
        if found.difference is not None:
            return found
        found.metrics += len(before) - 1
        found.steps += step != 0
    return found


def difference_of(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> str | None:
    """The first key whose values are not exactly the same; None where all are."""
    for key in dict.fromkeys([*old, *new]):
        if key not in old or key not in new:
            return f"{where}{key} is missing in {'OLD' if key not in old else 'NEW'}"
        if json.dumps(old[key], sort_keys=True) != json.dumps(new[key], sort_keys=True):
            return f"{where}{key}: {shortened(old[key])} != {shortened(new[key])}"
    return None


def renamed(record: Mapping[str, Any], names: Renamed) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in record.items()}


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def compare_samples(old: Path, new: Path, renames: Renames) -> Comparison:
    """Every column of every row of `samples.sqlite`."""
    found = Comparison()
    for before, after in zip_longest(read_samples(old), read_samples(new)):
        if before is None or after is None:
            found.difference = f"samples: {'OLD' if before is None else 'NEW'} has fewer"
            return found
        where = f"sample {before['kind']} {before['step']}/{before['sample']}: "
        found.difference = difference_of(_fields(before, renames.sample_fields), _fields(after, {}), where)
        if found.difference is not None:
            return found
        found.samples += 1
    return found


def read_samples(run: Path) -> list[dict[str, Any]]:
    path = run / "samples.sqlite"
    if not path.is_file():
        return []
    db = sqlite3.connect(path)
    try:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM samples ORDER BY step, kind, sample")]
    finally:
        db.close()


def _fields(sample: dict[str, Any], names: Renamed) -> dict[str, Any]:
    """A sample's columns, with `extras` spelled out."""
    extras = json.loads(sample.get("extras") or "{}")
    columns = {key: value for key, value in sample.items() if key != "extras"}
    return renamed(columns, names) | {f"extras.{names.get(key, key)}": value for key, value in extras.items()}


def compare_checkpoints(old: Path, new: Path, renames: Renames) -> Comparison:
    """The last checkpoint of each: weights, optimizers' state and critic, then scalars and what is kept by question."""
    before, after = last_checkpoint(old), last_checkpoint(new)
    if before is None or after is None or before.name != after.name:
        names = [path.name if path is not None else "none" for path in (before, after)]
        return Comparison(difference=f"last checkpoint: {names[0]} != {names[1]}")
    found = compare_tensors(before, after, renames.tensors)
    found.difference = found.difference or compare_state(before, after, renames.scalars)
    return found


def last_checkpoint(run: Path) -> Path | None:
    found = [path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def compare_tensors(old: Path, new: Path, names: Renamed) -> Comparison:
    """Every tensor of every safetensors file, bit by bit."""
    found = Comparison()
    files = [sorted(str(p.relative_to(path)) for p in path.rglob("*.safetensors")) for path in (old, new)]
    if files[0] != files[1]:
        found.difference = f"files: {shortened(files[0])} != {shortened(files[1])}"
        return found
    for file in files[0]:
        before = renamed(_tensors(old / file), names)
        after = _tensors(new / file)
        for name in dict.fromkeys([*before, *after]):
            if name not in before or name not in after:
                found.difference = f"{file}: {name} is missing in {'OLD' if name not in before else 'NEW'}"
            elif not same_tensor(before[name], after[name]):
                found.difference = f"{file}: {name} differs{_distance(before[name], after[name])}"
            if found.difference is not None:
                return found
            found.tensors += 1
    return found


def _tensors(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in sorted(opened.keys())}


def same_tensor(old: Tensor, new: Tensor) -> bool:
    """By bytes: NaN equals itself, and 0 is not -0."""
    if old.dtype != new.dtype or old.shape != new.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (old, new)))


def _distance(old: Tensor, new: Tensor) -> str:
    if old.shape != new.shape or old.dtype != new.dtype:
        return f": {old.dtype} {tuple(old.shape)} != {new.dtype} {tuple(new.shape)}"
    return f" by up to {float((old.double() - new.double()).abs().max()):.3g}"


def compare_state(old: Path, new: Path, names: Renamed) -> str | None:
    """`state/scalars.json`, and `state/memory.jsonl` where there is one."""
    scalars = [json.loads((path / "state" / "scalars.json").read_text(encoding="utf-8")) for path in (old, new)]
    flat = [{key: value for key, value in _flat(one) if not _left_out(key)} for one in scalars]
    found = difference_of(renamed(flat[0], names), flat[1], "scalars.json: ")
    memory = [path / "state" / "memory.jsonl" for path in (old, new)]
    texts = [path.read_text(encoding="utf-8") if path.is_file() else "" for path in memory]
    return found or (None if texts[0] == texts[1] else "memory.jsonl differs")


def _left_out(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in NOT_COMPARED)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{path}.{key}" if path else key)


def _records(path: Path) -> Sequence[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
