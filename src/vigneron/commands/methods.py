"""`vigneron methods`: the methods and their config keys, read from the config classes."""

from collections.abc import Sequence

from vigneron.config import MethodConfig, MethodOptions
from vigneron.config.keys import keys_of, kind_of, models_in
from vigneron.errors import UserError, did_you_mean

METHODS: dict[str, type[MethodOptions]] = {
    str(kind_of(model)): model for model in models_in(MethodConfig) if issubclass(model, MethodOptions)
}


def method_lines(name: str | None = None) -> list[str]:
    """One line per method; for one method, one line per key with its default, its values and its meaning."""
    if name is None:
        return _aligned([(key, model.description) for key, model in METHODS.items()])
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    model = METHODS[name]
    rows = [(f"  {key.name}", key.default, " | ".join(key.type), key.meaning) for key in keys_of(model, "method.")]
    return [model.description, *_aligned(rows)]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
