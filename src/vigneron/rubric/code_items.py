"""A rubric is data, except for items with `flow: python`, which run a function: commands ask for it explicitly."""

from collections.abc import Iterable
from pathlib import Path

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.rubric.model import PythonItem
from vigneron.rubric.read import read_rubric

FLAG = "--allow-code"


def check_code_allowed(rubrics: Iterable[str | Path], *, allowed: bool) -> None:
    """Refuse rubrics that run code unless it is allowed, and the flag where it has no effect."""
    runs = [
        (file, name, item)
        for file in rubrics
        for name, category in read_rubric(file).categories.items()
        for item in category.items
        if isinstance(item, PythonItem)
    ]
    if runs and not allowed:
        file, name, item = runs[0]
        raise UserError(
            f"the rubric '{file}' runs code: '{name}.{item.name}' calls the Python function '{item.function}' "
            f"(flow: python). Read it, then add {FLAG}"
        )
    if allowed and not runs:
        raise UserError(f"{FLAG} has no effect: there is no rubric with an item of `flow: python`")


def rubrics_of(config: Config) -> list[str]:
    """The rubric files that a recipe names."""
    if config.reward.kind != "rubric":
        return []
    return [file for file in (config.reward.file, config.reward.held_out_file) if file is not None]
