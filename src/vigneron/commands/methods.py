"""`vigneron methods`: the methods and their config keys, read from the config classes."""

import shutil
import textwrap
from collections.abc import Sequence

from vigneron.config import MethodConfig, MethodOptions
from vigneron.config.keys import keys_of, kind_of, models_in
from vigneron.errors import UserError, did_you_mean

METHODS: dict[str, type[MethodOptions]] = {
    str(kind_of(model)): model for model in models_in(MethodConfig) if issubclass(model, MethodOptions)
}

WIDTH = 100
"""Characters of the widest line of a meaning."""
SHARED = (
    "Keys that all methods share (steps, prompts_per_step, group_size, optimizer, data, reward …) are in",
    "docs/reference/config.md; `vigneron recipes` lists recipes to start from.",
)


def method_lines(name: str | None = None) -> list[str]:
    """One line per method; for one method, each key with its default, its values and, below it, its meaning."""
    if name is None:
        return _aligned([(key, model.description) for key, model in METHODS.items()])
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    model = METHODS[name]
    keys = list(keys_of(model, "method."))
    width = min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH)
    heads = _aligned([(f"  {key.name}", key.default, " | ".join(key.type)) for key in keys])
    lines = [model.description]
    for key, head in zip(keys, heads, strict=True):
        indent = " " * 6
        lines += [
            head,
            *textwrap.wrap(key.meaning, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False),
        ]
    return [*lines, *SHARED]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
