"""`vigneron methods`: the methods and their config keys, from the options classes."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from vigneron.config import MethodConfig, MethodOptions
from vigneron.errors import UserError, did_you_mean

METHODS: dict[str, type[MethodOptions]] = {
    get_args(of.model_fields["name"].annotation)[0]: of for of in get_args(get_args(MethodConfig)[0])
}


def method_lines(name: str | None = None) -> list[str]:
    """One line per method; for one method, one line per key with its default."""
    if name is None:
        width = max(map(len, METHODS))
        return [f"{key:<{width}}  {of.description}" for key, of in METHODS.items()]
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    keys = list(_keys(METHODS[name]))
    width = max((len(key) for key, _ in keys), default=0)
    return [METHODS[name].description, *(f"  {key:<{width}}  {default}" for key, default in keys)]


def _keys(of: type[BaseModel], prefix: str = "method.") -> Iterator[tuple[str, Any]]:
    for key, field in of.model_fields.items():
        if key == "name" and prefix == "method.":
            continue
        default = field.default
        if isinstance(default, BaseModel):
            yield from _keys(type(default), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "none" if default is None else default
