"""Whether objects of the code's classes depend on what the test made them with: else all are equal."""

from collections.abc import Iterable, Mapping
from typing import Any

from vigneron.sandbox.inside.border import Peer
from vigneron.sandbox.inside.plain import dumps
from vigneron.sandbox.inside.remote import Remote

FEWEST_STATES = 4
"""States of a class that ignores the first change of an argument, as one that clamps it may."""


def check_classes(peer: Peer, compared: Iterable[Remote], constants: Mapping[tuple[int, str], Remote]) -> None:
    """Objects that were compared must depend on their arguments, and constants of a class on their names. Raises
    `AssertionError`."""
    remotes = [*compared]
    numbers = {remote._v.number for remote in remotes}
    for remote in remotes:
        if remote._v.made is None:
            continue
        _, args, kwargs = remote._v.made
        for at, arg in enumerate(args):
            _check_argument(peer, remote, [((*args[:at], new, *args[at + 1 :]), kwargs) for new in _others(arg)])
        for key, arg in kwargs.items():
            _check_argument(peer, remote, [(args, {**kwargs, key: new}) for new in _others(arg)])
    for (owner, name), one in constants.items():
        for (owner_2, name_2), two in constants.items():
            both = one._v.number in numbers or two._v.number in numbers
            if owner == owner_2 and name != name_2 and both and one._v.state == two._v.state:
                raise AssertionError(f"`{name}` and `{name_2}` of the code's class are the same")


def _check_argument(peer: Peer, remote: Remote, calls: list[tuple[Any, Any]]) -> None:
    """Another argument gives another state; or further ones at least `FEWEST_STATES`."""
    states = {dumps(remote._v.first_state)}
    for at, (args, kwargs) in enumerate(calls):
        try:
            value = peer.request("call", remote._v.made[0], None, args, kwargs)
        except Exception:  # the class refuses these arguments
            if at == 0:
                return
            continue
        if not isinstance(value, Remote):
            return
        states.add(dumps(value._v.state))
        if len(states) > 1 and at == 0:
            return
    if calls and len(states) < FEWEST_STATES:
        raise AssertionError(f"objects of the code's class {remote._v.type_name} are equal whatever their arguments")


def _others(value: Any) -> list[Any]:
    """Similar values that are not equal, the nearest first."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value + 1, value - 1, value // 2, value // 4, value // 8, -value]
    if isinstance(value, float):
        return [value + 1, value - 1, value / 2, value / 4, value / 8, -value]
    if isinstance(value, str):
        return [f"{value}x", f"x{value}", value[1:], value[:1], value[::-1], ""]
    if isinstance(value, list) and value:
        return [[*value, value[-1]], value[:-1], value[1:], [], [*value, *_others(value[-1])[:1]]]
    return []
