"""`vigneron methods`: the methods and their config keys, read from the config classes."""

from collections.abc import Sequence

from vigneron.config import MethodConfig
from vigneron.config.keys import Model, keys_of, kind_of, models_in, one_line
from vigneron.errors import UserError, did_you_mean

METHODS: dict[str, Model] = {str(kind_of(model)): model for model in models_in(MethodConfig)}


def method_lines(name: str | None = None) -> list[str]:
    """One line per method; for one method, one line per key with its default and its meaning."""
    if name is None:
        return _aligned([(key, one_line(model.__doc__ or "")) for key, model in METHODS.items()])
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    model = METHODS[name]
    rows = [(f"  {key.name}", key.default, key.meaning) for key in keys_of(model, "method.")]
    return [one_line(model.__doc__ or ""), *_aligned(rows)]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
