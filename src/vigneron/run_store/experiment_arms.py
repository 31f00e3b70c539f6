"""Runs grouped into the arms of a comparison: the runs of an arm differ only by their seed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.errors import UserError, visible
from vigneron.run_store.eval_rows import EvalRow, read_eval_rows
from vigneron.run_store.folder import RunFolder
from vigneron.values import differing_keys, flatten, is_number

ABSENT = "nothing"
NAMES = ("recipe", "about")
"""Keys that do not change what a run does."""
MEMORY = ("microbatch_tokens", "model.cache_gb", "model.memory_gb", "model.activation_checkpointing")
"""Keys that bound memory; a run has what was found for them."""


@dataclass(frozen=True)
class CollectedRun:
    """A run's config and metrics, finished or not."""

    path: Path
    config: Config
    records: list[dict[str, Any]]
    seconds: float | None
    rows: tuple[EvalRow, ...] = ()
    """Scores of held-out rows at the last evaluations."""

    @classmethod
    def read(cls, path: Path) -> "CollectedRun":
        folder = RunFolder.open(path)
        config = folder.config()
        per_step = config.prompts_per_step * config.group_size
        records = list(folder.records("metrics.jsonl"))  # a comparison leaves no step out
        if not records:
            raise UserError(f"'{path}' has no metrics yet: continue it with `vigneron resume {path}`")
        seconds = [r["seconds"] for r in folder.records("timings.jsonl") if is_number(r.get("seconds"))]
        return cls(
            path,
            config,
            [{**record, "episodes": record["step"] * per_step} for record in records],
            sum(seconds) if seconds else None,
            tuple(read_eval_rows(path)),
        )


@dataclass(frozen=True)
class Arm:
    name: str
    runs: list[CollectedRun]


def arms_of(runs: Sequence[CollectedRun]) -> list[Arm]:
    """In the given order, named by recipe, or by folder where two recipes have the same name."""
    grouped: dict[str, list[CollectedRun]] = {}
    for run in runs:
        grouped.setdefault(repr(identity(run.config)), []).append(run)
    groups = list(grouped.values())
    for naming in (lambda run: run.config.recipe, _folder_name, lambda run: str(run.path.resolve())):
        names = [visible(naming(group[0])) for group in groups]
        if len(set(names)) == len(names):
            break
    return [Arm(name, group) for name, group in zip(names, groups, strict=True)]


def _folder_name(run: CollectedRun) -> str:
    return re.sub(r"-seed-\d+$", "", run.path.resolve().name)


def refuse_duplicates(runs: Sequence[tuple[Path, Config]]) -> None:
    """Refuse two runs of the same config and seed."""
    seen: dict[str, Path] = {}
    for path, config in runs:
        key = repr((config.seed, identity(config)))
        if key in seen:
            raise UserError(f"'{seen[key]}' and '{path}' have the same config and seed: leave out one of them")
        seen[key] = path


def identity(config: Config) -> dict[str, Any]:
    """The keys that tell arms apart: all but names, the seed, and keys that only bound memory or log."""
    flat = flatten(config.model_dump(mode="json"))
    flat["model.device"] = str(flat["model.device"]).split(":")[0]
    return {key: value for key, value in flat.items() if key not in (*NAMES, *MEMORY, "seed", "trackers")}


def differences(arms: Sequence[Arm]) -> list[tuple[str, list[Any]]]:
    """The config keys in which arms differ, and each arm's value."""
    return list(differing_keys([identity(arm.runs[0].config) for arm in arms], ABSENT).items())


def first_change(requested: Config, resolved: Config, existing: Config) -> str | None:
    """The first key in which a run's config differs from the requested one; a resolved `auto` is no difference."""
    before, now, then = (flatten(config.model_dump(mode="json")) for config in (requested, resolved, existing))
    for key in dict.fromkeys((*now, *then)):
        if key == "about" or before.get(key) == "auto" or now.get(key, ABSENT) == then.get(key, ABSENT):
            continue
        return f"{key} was {then.get(key, ABSENT)!r}, is now {now.get(key, ABSENT)!r}"
    return None
