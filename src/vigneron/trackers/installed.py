"""Which trackers are here. Light: nothing of theirs is imported."""

import importlib.util
from collections.abc import Sequence

from vigneron.errors import UserError


def missing_trackers(names: Sequence[str]) -> list[str]:
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    """A folder of that name, as wandb makes one where it runs, is no package."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def check_trackers(names: Sequence[str]) -> None:
    if missing := missing_trackers(names):
        raise UserError(
            f"trackers: {' and '.join(missing)} not installed: run `pip install {' '.join(missing)}`, "
            "or leave out `trackers`"
        )
