"""Scripted debaters for the lists of `data/sum_lists.py`, and a game that is played by scripts."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from vigneron.data.sum_lists import HIGHEST, LOWEST, SIDES, Quote, read_quotes
from vigneron.environments.game import Round, checked_round

Speaker = Callable[[Any, str, list[str]], str]
"""Of the row, the side that is argued for and the messages so far: the turn."""
MEAN = (LOWEST + HIGHEST) / 2


def facts(row: Mapping[str, Any]) -> list[Quote]:
    return [Quote(side, n, v) for side in SIDES for n, v in enumerate(row[side.lower()], 1)]


def quoting_what_helps(row: Any, side: str, read: list[str]) -> str:
    """The two numbers that speak most for the side and were not quoted yet."""

    def help_of(quote: Quote) -> float:
        return (quote.value - MEAN) * (1 if quote.side == side else -1)

    quoted = {quote for text in read[1:] for quote in read_quotes(text, 100)}
    left = sorted((q for q in facts(row) if q not in quoted and help_of(q) > 0), key=help_of, reverse=True)
    return " ".join(map(str, left[:2]))


def quoting_anything(seed: int) -> Speaker:
    random = Random(seed)
    return lambda row, side, read: " ".join(map(str, random.sample(facts(row), 2)))


def inventing(seed: int) -> Speaker:
    """Numbers of any value in any place: a chance player."""
    random = Random(seed)
    return lambda row, side, read: " ".join(
        str(Quote(random.choice(SIDES), random.randint(1, 9), random.randint(LOWEST, HIGHEST))) for _ in range(2)
    )


def played(game: Any, row: Any, speakers: Mapping[str, Speaker] | Speaker) -> tuple[Round, dict[str, list[str]]]:
    """The last round, and what each role read and wrote, in turns."""
    talks: dict[str, list[str]] = {role: [] for role in game.roles}
    happened, earned = checked_round(game.start(), game.roles), dict.fromkeys(game.roles, 0.0)
    while True:
        for role, (message, *more) in happened.messages.items():
            assert not more
            talks[role].append(message["content"])
        for role, reward in happened.rewards.items():
            earned[role] += reward
        if not happened.to_play:
            return Round((), {}, earned, happened.log), talks
        turns = {}
        for role in happened.to_play:
            speaker = speakers[role] if isinstance(speakers, Mapping) else speakers
            side = game.sides[role] if hasattr(game, "sides") else role
            turns[role] = speaker(row, side, talks[role])
            talks[role].append(turns[role])
        happened = checked_round(game.play(turns), game.roles)
