"""Methods, rollouts and curricula of a user's own: `name: "module:function"`, with an options class of their own.

The function is called as `build(parts, options)`; its annotation of `options` names the class that the section is
checked against. User code is imported only where a run is validated, trained, resumed, evaluated or loaded (`USER_CODE`
in the validation context); everywhere else, as in a list of runs, the section is read as it is.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import InitErrorDetails

from vigneron.config.values import Strict

USER_CODE = "user_code"
Options = TypeVar("Options", bound="Strict")


def _user_path(name: str) -> str:
    if not is_user_path(name):
        raise ValueError(f"should be module:function, not {name!r}")
    return name


class SlotOptions(Strict):
    """The options of a user's own rollout or curriculum: subclass it, and add keys."""

    name: Annotated[str, AfterValidator(_user_path)]
    """`module:function`."""


def is_user_path(name: Any) -> bool:
    return isinstance(name, str) and ":" in name


def import_object(path: str) -> Any:
    """`module:name`, imported; the current folder is on the path. Raises ValueError in the user's words."""
    module_name, _, name = path.partition(":")
    if module_name.endswith(".py"):
        raise ValueError(f"should be module:function, not {path!r}: leave out '.py', and write dots for slashes")
    if not all(part.isidentifier() for part in module_name.split(".")) or not name.isidentifier():
        raise ValueError(f"should be module:function, not {path!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a user's module beside the recipe
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        own = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        looked = f" in '{os.getcwd()}', where vigneron was started, or installed" if own else ""
        raise ValueError(f"cannot import '{module_name}': {error}{looked}") from error
    except Exception as error:  # the edge to the user's own code: name it, keep the cause for --debug
        raise ValueError(f"importing '{module_name}' raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        known = f" (available: {', '.join(functions)})" if functions else ""
        raise ValueError(f"'{module_name}' has no function '{name}'{known}")
    return function


def options_class(path: str, base: type[Options]) -> type[Options]:
    """The class of a build function's `options`."""
    try:
        hint = get_type_hints(import_object(path)).get("options")
    except (NameError, TypeError) as error:  # TypeError: a callable without annotations, such as a partial
        raise ValueError(f"'{path}': the annotation of `options` cannot be resolved: {error}") from error
    if not (isinstance(hint, type) and issubclass(hint, base)):
        raise ValueError(f"'{path}' needs a parameter `options` annotated with a subclass of {base.__name__}")
    return hint


def with_user_options(base: type[Options]) -> WrapValidator:
    """Reads a section whose `name` is `module:function` by the user's class, any other one as usual."""

    class Unread(base):  # type: ignore[misc, valid-type]
        """The options of user code that was not imported."""

        model_config = ConfigDict(extra="allow")
        imported: ClassVar[bool] = False
        name: str

    def read(given: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = given.get("name") if isinstance(given, Mapping) else None
        if not isinstance(name, str) or not is_user_path(name):
            return handler(given)
        if not (info.context or {}).get(USER_CODE):
            return Unread.model_validate(given)
        try:
            return options_class(name, base).model_validate(given)
        except ValidationError as error:
            raise _tagged(error, name) from error

    return WrapValidator(read)


def _tagged(error: ValidationError, name: str) -> ValidationError:
    """With the section's name in each location, as a union of built-in sections has it."""
    lines = [
        InitErrorDetails(type=e["type"], loc=(name, *e["loc"]), input=e["input"], ctx=e.get("ctx", {}))
        for e in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, lines)
