"""One module per method, under the name that a config gives it: how it fills the loop's slots."""

from importlib import import_module

from vigneron.config.custom import is_user_path
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.user_code import python_function


def build_method(parts: Parts) -> Method:
    """The method that the config names: `vigneron.methods.NAME`, or `module:function` of the user's own."""
    options = parts.config.method
    if is_user_path(options.name):
        build = python_function(options.name, "method.name")
    else:
        build = import_module(f"vigneron.methods.{options.name}").build
    return build(parts, options)
