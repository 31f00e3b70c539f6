"""Runs put together into arms: one arm is one recipe, its runs differ by their seed alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.errors import UserError, visible
from vigneron.run_store.folder import RunFolder
from vigneron.values import differing_keys, flatten, is_number

ABSENT = "nothing"
NAMES = ("recipe", "about")
"""What a config is called changes nothing of what it does."""


@dataclass(frozen=True)
class CollectedRun:
    """What is known of a run, finished or not."""

    path: Path
    config: Config
    records: list[dict[str, Any]]
    seconds: float | None

    @classmethod
    def read(cls, path: Path) -> "CollectedRun":
        folder = RunFolder.open(path)
        config = folder.config()
        per_step = config.prompts_per_step * config.group_size
        records = folder.metrics()
        if not records:
            raise UserError(f"'{path}' has no metrics yet: `vigneron resume {path}` goes on with it")
        seconds = [r["seconds"] for r in folder.records("timings.jsonl") if is_number(r.get("seconds"))]
        return cls(
            path,
            config,
            [{**record, "episodes": record["step"] * per_step} for record in records],
            sum(seconds) if seconds else None,
        )


@dataclass(frozen=True)
class Arm:
    name: str
    runs: list[CollectedRun]


def arms_of(runs: Sequence[CollectedRun]) -> list[Arm]:
    """In the order they came, each by its recipe's name, or by its folder's where two recipes are called alike."""
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


def refuse_twins(runs: Sequence[tuple[Path, Config]]) -> None:
    """Two runs of one config and one seed say nothing about each other."""
    seen: dict[str, Path] = {}
    for path, config in runs:
        key = repr((config.seed, identity(config)))
        if key in seen:
            raise UserError(f"'{seen[key]}' and '{path}' are identical, seed and all: leave out one of the two")
        seen[key] = path


def identity(config: Config) -> dict[str, Any]:
    """What makes two runs arms of their own: everything but names, the seed, and what only bounds memory."""
    flat = flatten(config.model_dump(mode="json"))
    flat["model.device"] = str(flat["model.device"]).split(":")[0]
    return {key: value for key, value in flat.items() if key not in (*NAMES, "seed", "microbatch_tokens", "trackers")}


def differences(arms: Sequence[Arm]) -> list[tuple[str, list[Any]]]:
    """The keys of the config in which arms differ, and each arm's value."""
    return list(differing_keys([identity(arm.runs[0].config) for arm in arms], ABSENT).items())


def first_change(asked: Config, resolved: Config, found: Config) -> str | None:
    """Where a run's config is not what is asked for now; what `auto` became when it started is no change."""
    before, now, then = (flatten(config.model_dump(mode="json")) for config in (asked, resolved, found))
    for key in dict.fromkeys((*now, *then)):
        if key == "about" or before.get(key) == "auto" or now.get(key, ABSENT) == then.get(key, ABSENT):
            continue
        return f"{key} was {then.get(key, ABSENT)!r} and is {now.get(key, ABSENT)!r} now"
    return None
