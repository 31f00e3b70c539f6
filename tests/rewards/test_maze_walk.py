"""The checker of walks: texts and conversations, right and wrong."""

from typing import Any

import pytest

from vigneron.data.tasks import load_task
from vigneron.rewards.checkers import check_texts

MAZE = "S#G\n...\n#.."


def turns(*moves: str) -> list[dict[str, Any]]:
    told = {"role": "user", "content": "north"}  # not the model's move
    return [message for move in moves for message in ({"role": "assistant", "content": move}, told)][:-1]


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("south, east, east, north", True),
        (" South,east.,east,NORTH.", True),
        ("south, east, east", False),
        ("south, east, east, north, south", False),
        ("", False),
        (turns("south", "east", "east", "north"), True),
        (turns("east", "what?", "south", "east", "east", "north"), True),  # a wall and nonsense cost turns only
        (turns("south", "east", "east"), False),
    ],
)
def test_walks(completion: Any, right: bool) -> None:
    assert check_texts("maze_walk", ["?"], [completion], {"input": [MAZE]}) == (right,)


def test_a_maze_that_cannot_be_read_has_no_verdict() -> None:
    assert check_texts("maze_walk", ["?"], ["north"], {"input": ["no maze"]}) == (None,)


def test_every_way_of_the_tasks_is_right() -> None:
    rows = load_task("maze-5").rows("held_out")
    columns = {"input": [row["input"] for row in rows]}
    assert all(check_texts("maze_walk", ["?"] * len(rows), [row["way"] for row in rows], columns))
