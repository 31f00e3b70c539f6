"""Objects whose methods are tools, one for each sample, in the form of TRL's `environment_factory`.

`reset` and `get_reward` are no tools: the first is called with the row's columns before the first tool, the second
after the conversation, for what it earned.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from vigneron.environments.reply import checked_reward
from vigneron.environments.tool_runs import ToolFailure, value_of
from vigneron.errors import UserError
from vigneron.threads import CallThreads
from vigneron.user_code import check_call

RESET, REWARD = "reset", "get_reward"


def tool_methods(owner: type) -> list[Callable[..., Any]]:
    """The public methods. Raises for a class without any, or that cannot be made."""
    members = inspect.getmembers(owner, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
    methods = [method for name, method in members if not name.startswith("_") and name not in (RESET, REWARD)]
    if not methods:
        raise UserError(f"the class '{owner.__name__}' has no public method, which would be a tool")
    arguments = _arguments(owner, {}, 0)
    check_call(owner, f"the class '{owner.__name__}'", f"{owner.__name__}({', '.join(arguments)})", **arguments)
    return methods


async def made(owner: type, row: Mapping[str, Any], seed: int, threads: CallThreads, limit_s: float) -> Any:
    """An object, which may take the row and the seed, after its `reset`."""
    try:
        return await value_of(partial(_made, owner, row, seed), threads, limit_s)
    except ToolFailure as failure:
        raise RuntimeError(f"{owner.__name__} could not be made: {failure}") from None


def _made(owner: type, row: Mapping[str, Any], seed: int) -> Any:
    instance = owner(**_arguments(owner, row, seed))
    reset = getattr(instance, RESET, None)
    if reset is not None and (text := reset(**row)) is not None:
        raise ValueError(
            f"{owner.__name__}.reset returned {text!r:.60}, and can only return None: the samples of a row have one "
            "prompt, so write such a text into the row's `prompt`"
        )
    return instance


def _arguments(owner: type, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
    parameters = inspect.signature(owner).parameters
    return {key: value for key, value in (("row", row), ("seed", seed)) if key in parameters}


async def reward_of(objects: Iterable[Any], threads: CallThreads, limit_s: float) -> float | None:
    """What the objects give for the conversation, summed; None if none gives a reward."""
    earned: float | None = None
    for get_reward in (getattr(one, REWARD) for one in objects if hasattr(one, REWARD)):
        try:
            reward = checked_reward(await value_of(get_reward, threads, limit_s))
        except ToolFailure as failure:
            raise RuntimeError(f"get_reward: {failure}") from None
        earned = earned if reward is None else (earned or 0.0) + reward
    return earned
