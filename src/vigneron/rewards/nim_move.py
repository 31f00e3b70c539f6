"""Whether the first move at Nim keeps the value of the game, worked out from the piles alone."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.nim import Nim, nim_value
from vigneron.policy.message_forms import message_text


def nim_optimal_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    piles: Sequence[Any],
    role: Sequence[str] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1 if the first move is legal and wins, or is legal where `piles` cannot be won. None for a role that moves
    second."""
    roles = role or ["first"] * len(completions)
    return [
        None if one != "first" or given is None else float(keeps_value(first_turn(completion), tuple(given)))
        for completion, given, one in zip(completions, piles, roles, strict=True)
    ]


def keeps_value(text: str, position: tuple[int, ...]) -> bool:
    nim = Nim()
    move = nim.read_move(text)
    if move is None or move not in nim.moves(position):
        return False
    return -nim_value(nim.play(position, move)) == nim_value(position)


def first_turn(completion: Any) -> str:
    if not isinstance(completion, list):
        return str(completion)
    return next((message_text(message) for message in completion if message.get("role") == "assistant"), "")
