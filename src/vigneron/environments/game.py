"""The interface of games: several roles, each with its own view of one conversation.

A game is a class, made once for each episode as `Class(row, seed, **options)`. `start()` says what each role reads
first and whose turn it is; `play(turns)` gets the texts of the roles that played and says what follows. Either may be
async. Roles that the policy plays are trained, each as a sample of its own.
"""

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vigneron.config import GameConfig
from vigneron.environments.reply import BadReply, checked_log, checked_messages, checked_reward
from vigneron.errors import UserError
from vigneron.policy.message_forms import Message
from vigneron.user_code import check_call, check_method, python_function

Texts = str | Sequence[Message]


@dataclass(frozen=True)
class Round:
    """What follows the turns of some roles."""

    to_play: Sequence[str] = ()
    """The roles whose turn it is: one, or several that do not see each other's. None: the game is over."""
    messages: Mapping[str, Texts] = field(default_factory=dict)
    """What roles read: messages, or the text of a user's message. A role reads them when its turn comes."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What roles earned by their last turns."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """Figures and texts, kept with the samples of every role."""


class Game(Protocol):
    @property
    def roles(self) -> Sequence[str]: ...
    def start(self) -> Round | Awaitable[Round]: ...
    def play(self, turns: Mapping[str, str]) -> Round | Awaitable[Round]: ...


def checked_round(given: Any, roles: Sequence[str]) -> Round:
    """The round, its messages as lists."""
    if not isinstance(given, Round):
        raise BadReply(f"a Round is needed, not {type(given).__name__}")
    listed = isinstance(given.to_play, Sequence) and not isinstance(given.to_play, str)
    if not listed or not all(isinstance(role, str) for role in given.to_play):
        raise BadReply(f"`to_play` should be a list of roles, not {given.to_play!r}")
    if len(set(given.to_play)) < len(given.to_play):
        raise BadReply(f"`to_play` names a role twice: {list(given.to_play)!r}")
    for what, by_role in (("messages", given.messages), ("rewards", given.rewards)):
        if not isinstance(by_role, Mapping):
            raise BadReply(f"`{what}` should be a dict with roles as keys, not {type(by_role).__name__}")
    names: Sequence[str] | Mapping[str, Any]
    for what, names in (("to_play", given.to_play), ("messages", given.messages), ("rewards", given.rewards)):
        if unknown := [name for name in names if name not in roles]:
            raise BadReply(f"`{what}` names {unknown[0]!r}, which is none of the roles {', '.join(roles)}")
    messages = {role: checked_messages(texts) for role, texts in given.messages.items()}
    rewards = {role: checked_reward(reward) or 0.0 for role, reward in given.rewards.items()}
    return Round(tuple(given.to_play), messages, rewards, checked_log(given.log))


def game_class(config: GameConfig) -> Any:
    """The user's class. Raises for one that cannot be played as the config says."""
    made: Any = python_function(config.class_, "environment.class")
    name = f"environment.class: '{config.class_}'"
    missing = [needed for needed in ("roles", "start", "play") if not hasattr(made, needed)]
    if missing or not inspect.isclass(made):
        what = f"no `{missing[0]}`" if missing else "to be a class"
        raise UserError(f"{name} has {what}: a game has roles, start() and play(turns)")
    game: Any = made
    roles = tuple(game.roles)
    if unknown := [role for role in config.players if role not in roles]:
        raise UserError(f"environment.players: '{unknown[0]}' is none of the game's roles: {', '.join(roles)}")
    if len(config.players) == len(roles):
        raise UserError("environment.players: the policy plays no role: leave one out")
    check_call(made, name, "Class(row, seed, **options)", None, 0, **config.options)
    check_method(made, "start", name, "start()")
    check_method(made, "play", name, "play(turns)", {})
    return made
