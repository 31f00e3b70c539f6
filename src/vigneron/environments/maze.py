"""A walk through a text maze: the model gives one direction a turn and is told what is open where it stands.

In a recipe:

    data: {task: maze-4}
    environment: {kind: python, class: "vigneron.environments.maze:MazeWalk", max_turns: 16}
    reward: {kind: environment}
"""

from vigneron.data.maze import Maze, move, read_move
from vigneron.data.prompts import Row
from vigneron.environments.columns import needed
from vigneron.environments.reply import Reply
from vigneron.policy.message_forms import Message, message_text


class MazeWalk:
    """Rewards the goal with (moves of the shortest way)/(turns used), else 0. Every reply is a turn."""

    def __init__(self, row: Row, seed: int) -> None:
        self.maze, self.turns = Maze(needed(row, "maze", str)), needed(row, "turns", int)
        self.cell, self.used = self.maze.start, 0

    def reply(self, messages: list[Message]) -> Reply:
        self.used += 1
        direction = read_move(message_text(messages[-1]))
        self.cell, description = move(self.maze, self.cell, direction)
        reached = self.cell == self.maze.goal
        log = {"reached": float(reached), "malformed": float(direction is None)}
        if reached:
            return Reply(reward=self.maze.shortest / self.used, done=True, log=log)
        if self.used == self.turns:
            return Reply(reward=0.0, done=True, log=log)
        return Reply(description, log=log)
