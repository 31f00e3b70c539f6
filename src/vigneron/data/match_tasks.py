"""The tasks of games of several roles: lists to debate over, and positions of Nim; each with plays to warm up with."""

from dataclasses import replace

from vigneron.data import sum_lists
from vigneron.data.games import NIM, warmed_up
from vigneron.data.task import Task

SUM_LISTS = Task(
    name="sum-lists",
    about="two lists of 4 numbers, for the games `SumDebate` and `SumConsultancy`",
    child_prompt=sum_lists.PROMPT.replace("{quotes}", str(sum_lists.QUOTES)),
    input="{shown}",
    checker="judge_right",
    answer="higher",
    reads="text",
    chat=True,
    parent_instruction="""\
You compare two lists of numbers, X and Y, in which X2=34 is the second number of X. Answer with the list that has the
higher sum, X or Y, and nothing else.
""",
)

NIM_POSITIONS = replace(
    NIM,
    name="nim-positions",
    about="`nim` with every position as the held-out part, to measure how far a player is from best play",
)

TASKS = (SUM_LISTS, warmed_up(SUM_LISTS), NIM_POSITIONS, warmed_up(NIM_POSITIONS))
