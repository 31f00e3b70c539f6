"""The tasks of environments and games: a guessing game, a maze, sums with a calculator, Nim, lists to debate over; each
with plays for a warm-up.

`NAME-warmup` has the rows of `NAME`, those to train on as conversations for SFT. Their held-out rows are the same.
"""

from dataclasses import replace
from functools import partial

from vigneron.data import guess, maze, sum_lists, sums
from vigneron.data.task import Task

_game = partial(Task, reads="text", chat=True)

GUESS = _game(
    name="guess",
    about="a guessing game, for the environment `GuessingGame`",
    child_prompt=guess.PROMPT,
    input="{lowest} to {highest}",
    checker="last_line",
    answer="secret",
    parent_instruction="""\
You guess a number. The INPUT is a range. Answer with one number of it and nothing else.
""",
)

MAZE = _game(
    name="maze",
    about="a text maze, for the environment `MazeWalk`",
    child_prompt=maze.PROMPT,
    input="{maze}",
    checker="maze_walk",
    answer="way",
    parent_instruction="""\
You find ways. The INPUT is a maze, in which # is a wall. Answer with the moves of a shortest way from S to G:
north, south, east or west, with commas between them and nothing else.
""",
)

SUMS = _game(
    name="sums",
    about="a sum of 2 to 5 terms of 3 or 4 digits, answered with its result",
    child_prompt=sums.PROMPT,
    input="{terms}",
    checker="last_line",
    answer="result",
    parent_instruction="""\
You add numbers. The INPUT is a sum. Answer with its result in digits and nothing else.
""",
)

SUMS_TOOL = replace(
    SUMS,
    name="sums-tool",
    about="`sums` for the environment `CalculatorGame`",
    child_prompt=sums.TOOL_PROMPT,
    file="sums",
)

NIM = _game(
    name="nim",
    about="starts of Nim, for the game `NimDuel`",
    child_prompt="{position}",
    input="{position}",
    checker="nim_optimal",
    answer="best",
    parent_instruction="""\
You play Nim. The INPUT is a position. Answer with the number of a pile and how many stones you take of it, and nothing
else.
""",
)

NIM_POSITIONS = replace(
    NIM,
    name="nim-positions",
    about="`nim` with every position as the held-out part, to measure how far a player is from best play",
)

SUM_LISTS = _game(
    name="sum-lists",
    about="two lists of 4 numbers, for the games `SumDebate` and `SumConsultancy`",
    child_prompt=sum_lists.PROMPT.replace("{quotes}", str(sum_lists.QUOTES)),
    input="{shown}",
    checker="judge_right",
    answer="higher",
    parent_instruction="""\
You compare two lists of numbers, X and Y, in which X2=34 is the second number of X. Answer with the list that has the
higher sum, X or Y, and nothing else.
""",
)


def warmed_up(task: Task) -> Task:
    """The task's rows with conversations to train on."""
    return replace(
        task,
        name=f"{task.name}-warmup",
        about=f"plays of `{task.name}` for SFT",
        file=f"{task.file or task.name}-warmup",
    )


_GAMES = (
    *(replace(GUESS, name=f"guess-{width}", about=f"{GUESS.about}: {width} numbers") for width in guess.WIDTHS),
    *(replace(MAZE, name=f"maze-{size}", about=f"{MAZE.about}: {size} × {size} cells") for size in maze.SIZES),
    SUMS_TOOL,
    NIM,
)
TASKS = (SUMS, *_GAMES, *map(warmed_up, _GAMES))
_MATCHES = (SUM_LISTS, NIM_POSITIONS)
MATCH_TASKS = (*_MATCHES, *map(warmed_up, _MATCHES))
"""Of games of several roles, with files of their own."""
