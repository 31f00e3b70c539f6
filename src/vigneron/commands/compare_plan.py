"""The plan of a comparison: which recipes to train with which seeds, and which existing runs to include."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.files import default_runs_folder
from vigneron.recipe import load_config, recipe_names
from vigneron.run_store.folder import check_name, run_path

LONGEST_NAME = 60


@dataclass(frozen=True)
class PlannedRun:
    """A run that the comparison trains, resumes, or finds finished."""

    path: Path
    config: Config


@dataclass(frozen=True)
class Plan:
    planned: list[PlannedRun]
    given: list[Path]
    """Folders of existing runs, included as they are."""
    out: Path
    archive: Path | None = None
    """File to pack the runs' logs into."""
    evaluations: int = 1
    """Intervals are of the mean of so many last evaluations."""


def plan_comparison(
    arguments: Sequence[str],
    *,
    seeds: int | None,
    runs: Path | None,
    name: str | None,
    out: Path | None,
    archive: Path | None = None,
    evaluations: int = 1,
) -> Plan:
    """Parse the arguments. Raises every error that can be found without heavy imports."""
    overrides = [word for word in arguments if "=" in word]
    words = [word for word in arguments if "=" not in word]
    recipes = [word for word in words if _is_recipe(word)]
    folders = [run_path(word) for word in words if not _is_recipe(word)]
    if not recipes and (overrides or seeds):
        inert = f"'{overrides[0]}'" if overrides else "--seeds"
        raise UserError(f"{inert} has no effect without a recipe: existing runs are included as they are")
    configs = [load_config(recipe, overrides) for recipe in recipes]
    _check_distinct_names(recipes, configs)
    given = [run for folder in folders for run in runs_in(folder)]
    if len(configs) * (seeds or 1) + len(given) < 2:
        raise UserError("nothing to compare: name two recipes or runs, or one recipe and --seeds 2")

    from vigneron.run_store.archive import check_archive

    name = name if name is not None else default_name([c.recipe for c in configs] + [_name(f) for f in folders])
    check_name(name)
    folder = (runs or default_runs_folder()) / name
    planned = []
    for recipe, config in zip(recipes, configs, strict=True):
        check_name(config.recipe)
        for seed in range(config.seed, config.seed + (seeds or 1)):
            seeded = load_config(recipe, overrides, {"seed": seed})
            planned.append(PlannedRun(folder / f"{config.recipe}-seed-{seed}", seeded))
    if archive is not None:
        check_archive([*(run.path for run in planned), *given], archive)
    return Plan(planned, given, out or folder, archive, evaluations)


def _is_recipe(word: str) -> bool:
    """Anything that is neither a path nor the name of a run counts as a recipe's name, which `load_config` checks."""
    return word in recipe_names() or word.endswith((".yaml", ".yml")) or not _is_path(word)


def _is_path(word: str) -> bool:
    return "/" in word or word in (".", "..", "~") or os.path.exists(word) or run_path(word).exists()


def _check_distinct_names(recipes: Sequence[str], configs: Sequence[Config]) -> None:
    """Folders of runs are named after their recipes."""
    seen: dict[str, int] = {}
    for number, config in enumerate(configs):
        first = seen.setdefault(config.recipe, number)
        if first == number:
            continue
        if configs[first] == config:
            raise UserError(f"'{recipes[first]}' and '{recipes[number]}' have the same config and seed: leave one out")
        raise UserError(
            f"'{recipes[first]}' and '{recipes[number]}' are both named '{config.recipe}': "
            "set another `recipe:` in one of them"
        )


def runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run's, or else the runs directly in it."""
    try:
        if (folder / "config.yaml").is_file():
            return [folder]
        inside = sorted(folder.iterdir(), key=lambda path: path.name)
        runs = [path for path in inside if (path / "config.yaml").is_file()]
    except OSError as error:
        raise UserError(f"cannot read the folder '{folder}': {error.strerror}") from error
    if not runs:
        raise UserError(f"'{folder}' is neither a recipe nor the folder of a run, and contains no runs")
    return runs


def default_name(names: Sequence[str]) -> str:
    """`compare-` and the names; a long name is cut and gets a hash."""
    full = "-".join(("compare", *names)).replace("/", "-")
    if len(full) <= LONGEST_NAME:
        return full
    return f"{full[: LONGEST_NAME - 9]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def _name(folder: Path) -> str:
    return folder.resolve().name
