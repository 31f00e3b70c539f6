"""Whether the moves of a completion lead through a maze, worked out from the maze alone."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.maze import Maze, move, read_move
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_text


def maze_walk_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, input: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the model's moves reach the goal of the maze in `input`; None for a maze that cannot be read."""
    return [_verdict(completion, given) for completion, given in zip(completions, input, strict=True)]


def _verdict(completion: Any, text: Any) -> float | None:
    try:
        maze = Maze(str(text))
    except UserError:
        return None
    cell = maze.start
    for text in moves_of(completion):
        cell, _ = move(maze, cell, read_move(text))
    return float(cell == maze.goal)


def moves_of(completion: Any) -> list[str]:
    """The model's turns of a conversation; of a text, what stands between its commas."""
    if isinstance(completion, list):
        return [message_text(message) for message in completion if message.get("role") == "assistant"]
    return str(completion).split(",")
