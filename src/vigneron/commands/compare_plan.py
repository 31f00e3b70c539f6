"""What a comparison is asked for: which recipes are trained with which seeds, and which runs are there already."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.files import user_path
from vigneron.recipe import load_config, recipe_names

LONGEST_NAME = 60


@dataclass(frozen=True)
class Planned:
    """A run of the comparison's own: trained, gone on with, or finished before."""

    path: Path
    config: Config


@dataclass(frozen=True)
class Plan:
    planned: list[Planned]
    given: list[Path]
    """Runs' folders, taken as they are."""
    out: Path
    archive: Path | None = None
    """Where the runs' logs are packed, if they are."""


def plan_comparison(
    what: Sequence[str],
    *,
    seeds: int | None,
    runs: Path | None,
    name: str | None,
    out: Path | None,
    archive: Path | None = None,
) -> Plan:
    """Sort the arguments out; every error that shows without loading anything heavy is raised here."""
    overrides = [word for word in what if "=" in word]
    words = [word for word in what if "=" not in word]
    recipes = [word for word in words if _is_recipe(word)]
    folders = [user_path(word) for word in words if not _is_recipe(word)]
    if not recipes and (overrides or seeds):
        inert = f"'{overrides[0]}'" if overrides else "--seeds"
        raise UserError(f"{inert} has no effect without a recipe: runs are taken as they are")
    configs = [load_config(recipe, overrides) for recipe in recipes]
    _refuse_one_name_for_two(recipes, configs)
    given = [run for folder in folders for run in runs_in(folder)]
    if len(configs) * (seeds or 1) + len(given) < 2:
        raise UserError("there is nothing to compare: give two recipes or runs, or one recipe and --seeds 2")

    from vigneron.run_store.archive import check_archive
    from vigneron.run_store.folder import check_name, default_runs_folder

    name = name if name is not None else default_name([c.recipe for c in configs] + [_name(f) for f in folders])
    check_name(name)
    folder = (runs or default_runs_folder()) / name
    planned = []
    for recipe, config in zip(recipes, configs, strict=True):
        check_name(config.recipe)
        for seed in range(config.seed, config.seed + (seeds or 1)):
            seeded = load_config(recipe, overrides, {"seed": seed})
            planned.append(Planned(folder / f"{config.recipe}-seed-{seed}", seeded))
    if archive is not None:
        check_archive([*(run.path for run in planned), *given], archive)
    return Plan(planned, given, out or folder, archive)


def _is_recipe(word: str) -> bool:
    """Anything that is no folder is taken for a recipe, and its name checked as one."""
    return word in recipe_names() or word.endswith((".yaml", ".yml")) or not _is_path(word)


def _is_path(word: str) -> bool:
    return "/" in word or word in (".", "..", "~") or os.path.exists(word)


def _refuse_one_name_for_two(recipes: Sequence[str], configs: Sequence[Config]) -> None:
    """Runs are kept under the recipe's name."""
    seen: dict[str, int] = {}
    for number, config in enumerate(configs):
        first = seen.setdefault(config.recipe, number)
        if first == number:
            continue
        if configs[first] == config:
            raise UserError(f"'{recipes[first]}' and '{recipes[number]}' are identical: leave out one of the two")
        raise UserError(
            f"'{recipes[first]}' and '{recipes[number]}' are both called '{config.recipe}': "
            "give one of them another `recipe:`"
        )


def runs_in(folder: Path) -> list[Path]:
    """The folder itself where it is a run's, or the runs directly in it."""
    try:
        if (folder / "config.yaml").is_file():
            return [folder]
        inside = sorted(folder.iterdir(), key=lambda path: path.name)
        found = [path for path in inside if (path / "config.yaml").is_file()]
    except OSError as error:
        raise UserError(f"cannot read the folder '{folder}': {error.strerror}") from error
    if not found:
        raise UserError(f"'{folder}' is neither a recipe nor a run's folder, and holds no runs")
    return found


def default_name(names: Sequence[str]) -> str:
    """`compare-` and the names; a long one is cut and told apart by a hash."""
    whole = "-".join(("compare", *names)).replace("/", "-")
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _name(folder: Path) -> str:
    return folder.resolve().name
