"""The maze: distances against an independent search, moves, walls, rewards; rows that share no maze."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.data import maze
from vigneron.data.maze import Maze
from vigneron.data.tasks import load_task
from vigneron.environments.maze import MazeWalk
from vigneron.environments.reply import Reply, checked_reply
from vigneron.errors import UserError

TEXT = "S#G\n...\n#.."
ROW = {"maze": TEXT, "turns": 8}


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


def walked(row: dict[str, Any], moves: list[str]) -> list[Reply]:
    walk = MazeWalk(row, seed=0)
    return [walk.reply(said(each)) for each in moves]


def test_a_shortest_walk_earns_1() -> None:
    *before, last = walked(ROW, ["south", "East", "east.", " north\n"])
    assert [reply.reward for reply in before] == [None] * 3
    assert (last.reward, last.done, last.log) == (1.0, True, {"reached": 1.0, "malformed": 0.0})
    assert before[0].messages == "Open: north, east. G is 1 north and 2 east."
    assert before[2].messages == "Open: north, south, west. G is 1 north."


def test_walls_edges_and_nonsense_cost_a_turn() -> None:
    wall, edge, nonsense, *_, last = walked(ROW, ["east", "north", "up", "south", "east", "east", "north"])
    here = "Open: south. G is 2 east."
    assert wall.messages == edge.messages == f"A wall. {here}"
    assert nonsense.messages == f"Answer with north, south, east or west. {here}"
    assert nonsense.log["malformed"] == 1.0
    assert last.reward == pytest.approx(4 / 7)


def test_a_walk_that_does_not_arrive_earns_0() -> None:
    *before, last = walked(ROW, ["south", "north"] * 4)
    assert not any(reply.done for reply in before)
    assert (last.reward, last.done, last.log["reached"]) == (0.0, True, 0.0)


@given(st.lists(st.text() | st.sampled_from([*maze.MOVES, "NORTH.", "north south", "nørth"]), min_size=1, max_size=8))
def test_no_text_breaks_the_walk(texts: list[str]) -> None:
    walk = MazeWalk(ROW, seed=0)
    for text in texts:
        reply = checked_reply(walk.reply(said(text)))
        if reply.done:
            assert 0 <= (-1 if reply.reward is None else reply.reward) <= 1
            return


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("S.\n..", "one S and one G"),
        ("SG\n.", "a square"),
        ("SGx\n...\n...", "a square"),
        ("S#\n#G", "no way from S to G"),
        ("", "a square"),
        ("\n".join(["S" + "." * 59] * 60), "a square"),
    ],
)
def test_a_maze_that_cannot_be_walked_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        MazeWalk({"maze": text, "turns": 3}, seed=0)


@pytest.mark.parametrize("size", maze.SIZES)
def test_distances_are_those_of_matrix_powers(size: int) -> None:
    """A cell is d moves away if d is the first power of the neighbourhood matrix that connects it."""
    for row in load_task(f"maze-{size}").rows("train")[::40]:
        walk = Maze(row["maze"])
        cells = sorted(walk.open)
        near = np.array([[abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for b in cells] for a in cells])
        reached, distance = np.array([cell == walk.goal for cell in cells]), 0
        while not reached[cells.index(walk.start)]:
            reached, distance = reached | (near @ reached), distance + 1
        assert distance == walk.shortest == row["shortest"] == len(row["way"].split(", "))
        assert walked(row, row["way"].split(", "))[-1].reward == 1.0
        assert size <= distance <= 2 * size


@pytest.mark.parametrize("size", maze.SIZES)
def test_no_maze_occurs_twice_not_even_turned_or_mirrored(size: int) -> None:
    rows = [row for split in maze.SPLITS for row in load_task(f"maze-{size}").rows(split)]
    assert len(rows) == sum(maze.SPLITS.values())
    keys = [maze.canonical(row["maze"]) for row in rows]
    assert len(set(keys)) == len(rows)


def test_canonical_is_the_same_for_all_eight_forms() -> None:
    text = "S.#\n..#\nG.."
    turned, mirrored = "G.S\n...\n.##", "#.S\n#..\n..G"
    assert maze.canonical(text) == maze.canonical(turned) == maze.canonical(mirrored)
    assert maze.canonical(text) != maze.canonical("S..\n..#\nG.#")


@pytest.mark.parametrize("size", maze.SIZES)
def test_the_recorded_turns_of_a_play_are_the_games(size: int) -> None:
    rewards = []
    for row in load_task(f"maze-{size}-warmup").rows("train"):
        walk, messages = MazeWalk(row, seed=0), row["messages"]
        assert len(messages) % 2 == 0
        for at in range(1, len(messages), 2):
            reply = walk.reply(messages[: at + 1])
            assert reply.done is (at == len(messages) - 1)
            if not reply.done:
                assert messages[at + 1] == {"role": "user", "content": reply.messages}
        rewards.append(reply.reward or 0.0)
    assert 0.2 < sum(rewards) / len(rewards) < 0.7  # neither hopeless nor best play
