"""The text maze: its rules, its rows, and plays to warm a model up with.

A maze is a square of `.` (open), `#` (wall), `S` (start) and `G` (goal). No two rows of a size have mazes that are
equal after turning or mirroring, in whichever split.
"""

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

from vigneron.data.prompts import Row
from vigneron.errors import UserError

SIZES = (4, 5, 6)
LARGEST = 50
SPLITS = {"train": 800, "tuning": 40, "held_out": 100}
WALLS = 0.3
MOVES = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
PROMPT = """\
Walk from S to G. # is a wall.
{maze}
{view}
Answer with one move: north, south, east or west."""
CARELESS = 0.5
"""How often a warm-up play takes any open direction."""

Cell = tuple[int, int]


class Maze:
    """A maze that was read from its text, with the distance of every cell from the goal."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        if not 1 < len(lines) <= LARGEST or any(len(line) != len(lines) or set(line) - set(".#SG") for line in lines):
            raise UserError(
                f"maze: it should be a square of '.', '#', S and G with 2 to {LARGEST} lines: {text[:80]!r}"
            )
        if text.count("S") != 1 or text.count("G") != 1:
            raise UserError(f"maze: it should have one S and one G: {text[:80]!r}")
        cells = {(row, column): mark for row, line in enumerate(lines) for column, mark in enumerate(line)}
        self.open = {cell for cell, mark in cells.items() if mark != "#"}
        self.start, self.goal = (next(cell for cell, mark in cells.items() if mark == name) for name in "SG")
        self.distance = distances(self.open, self.goal)
        if self.start not in self.distance:
            raise UserError(f"maze: there is no way from S to G: {text[:80]!r}")

    @property
    def shortest(self) -> int:
        return self.distance[self.start]

    def exits(self, cell: Cell) -> dict[str, Cell]:
        """The open cells next to a cell, by direction."""
        return {name: next_cell for name, next_cell in around(cell) if next_cell in self.open}

    def best(self, cell: Cell) -> list[str]:
        """The directions that begin a shortest way to the goal."""
        return [name for name, to in self.exits(cell).items() if self.distance[to] < self.distance[cell]]

    def view(self, cell: Cell) -> str:
        """What the player is told: the open directions, and where the goal is."""
        south, east = self.goal[0] - cell[0], self.goal[1] - cell[1]
        parts = (_offset(south, "south", "north"), _offset(east, "east", "west"))
        where = " and ".join(part for part in parts if part)
        return f"Open: {', '.join(self.exits(cell))}. G is {where}."


def _offset(steps: int, ahead: str, back: str) -> str:
    return f"{abs(steps)} {ahead if steps > 0 else back}" if steps else ""


def around(cell: Cell) -> Iterator[tuple[str, Cell]]:
    return ((name, (cell[0] + south, cell[1] + east)) for name, (south, east) in MOVES.items())


def distances(cells: set[Cell], goal: Cell) -> dict[Cell, int]:
    """The number of moves from each cell to the goal, for those with a way to it (breadth-first search)."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for _, next_cell in around(cell):
            if next_cell in cells and next_cell not in found:
                found[next_cell] = found[cell] + 1
                queue.append(next_cell)
    return found


def read_move(text: str) -> str | None:
    """The direction, if the text has one and nothing else, but for case and a full stop. Else None."""
    text = text[:100].strip().removesuffix(".").lower()
    return text if text in MOVES else None


def move(maze: Maze, cell: Cell, direction: str | None) -> tuple[Cell, str]:
    """The cell after a move, and what the player is told there."""
    if direction is None:
        return cell, f"Answer with north, south, east or west. {maze.view(cell)}"
    reached = maze.exits(cell).get(direction)
    if reached is None:
        return cell, f"A wall. {maze.view(cell)}"
    return reached, "" if reached == maze.goal else maze.view(reached)


def generate(size: int, seed: int = 0) -> list[Row]:
    random, seen, rows = Random(f"maze {size} {seed}"), set[str](), list[Row]()
    for split, count in SPLITS.items():
        while count:
            text = draw(size, random)
            if text is not None and (key := canonical(text)) not in seen:
                seen.add(key)
                rows.append(maze_row(text, split))
                count -= 1
    return rows


def draw(size: int, random: Random) -> str | None:
    """A random maze; None if the shortest way from S to G has not `size` moves to twice as many."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    marks = {cell: "#" if random.random() < WALLS else "." for cell in cells}
    start, goal = random.sample(cells, 2)
    marks |= {start: "S", goal: "G"}
    way = distances({cell for cell, mark in marks.items() if mark != "#"}, goal).get(start, 0)
    lines = ("".join(marks[row, column] for column in range(size)) for row in range(size))
    return "\n".join(lines) if size <= way <= 2 * size else None


def canonical(text: str) -> str:
    """The same text for a maze and all that are equal after turning or mirroring."""
    lines, forms = text.split("\n"), []
    for _ in range(4):
        lines = ["".join(column) for column in zip(*reversed(lines), strict=True)]
        forms += ["\n".join(lines), "\n".join(line[::-1] for line in lines)]
    return min(forms)


def maze_row(text: str, split: str) -> Row:
    maze = Maze(text)
    cell, way = maze.start, list[str]()
    while cell != maze.goal:
        way.append(maze.best(cell)[0])
        cell = maze.exits(cell)[way[-1]]
    return {
        "maze": text,
        "view": maze.view(maze.start),
        "shortest": maze.shortest,
        "turns": 2 * maze.shortest,
        "way": ", ".join(way),
        "split": split,
    }


def warm_up(size: int, seed: int = 0) -> list[Row]:
    """The same rows, those to train on with a `play`: the shortest way, but for any open direction now and then."""
    random = Random(f"maze play {size} {seed}")
    return [
        {**row, "play": careless_play(row, random)} if row["split"] == "train" else row for row in generate(size, seed)
    ]


def careless_play(row: Row, random: Random) -> list[dict[str, Any]]:
    """The messages after the prompt, up to the last move."""
    maze, play = Maze(row["maze"]), list[dict[str, Any]]()
    cell = maze.start
    for used in range(1, row["turns"] + 1):
        choice = random.choice(list(maze.exits(cell)) if random.random() < CARELESS else maze.best(cell))
        play.append({"role": "assistant", "content": choice})
        cell, description = move(maze, cell, choice)
        if cell == maze.goal or used == row["turns"]:
            break
        play.append({"role": "user", "content": description})
    return play
