"""A built-in task: a template of prompts, and rows from a file or a generator."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

from vigneron.data import forms, guess, maze, nim, opposites, sum_lists, sums
from vigneron.data.prompts import Row, continuation
from vigneron.errors import UserError


@dataclass(frozen=True)
class Task:
    """A built-in task. `child_prompt` is the PGSRM paper's; `parent_instruction` words the paper's rules."""

    name: str
    about: str
    child_prompt: str
    parent_instruction: str
    input: str
    """Template of the parent's input."""
    reads: Literal["json", "text"] = "json"
    """Format of the parent's answers."""
    checker: str = "equality"
    answer: str = "answer"
    """Column of the task's file with the answer."""
    file: str | None = None
    """Name of the file in `task_files`, or of rows that are generated. None: the task's name."""
    further_file: str | None = None
    """A second file, whose rows follow."""
    level: int | None = None
    """Only the rows of this level."""
    chat: bool = False
    """Whether prompts are conversations: a user's message."""

    def rows(self, split: str, template: str | None = None) -> list[Row]:
        """Prompts with the `input` and the parent's `answer`; `split` is `train`, `tuning` or `held_out`."""
        prompt = template or self.child_prompt
        try:
            return [
                self._row(prompt, row)
                for file in (self.file or self.name, self.further_file)
                if file is not None
                for row in _recorded(file)
                if row["split"] == split and self.level in (None, row.get("level"))
            ]
        except (KeyError, IndexError, ValueError, AttributeError, TypeError, MemoryError, OverflowError) as error:
            raise UserError(f"data.template: {prompt!r} cannot be filled from the task's columns: {error!r}") from error

    def _row(self, template: str, row: Row) -> Row:
        """The filled row. One with a `play`, the turns that follow its prompt, becomes a conversation to train on."""
        text = template.format(**row)
        prompt: Any = [{"role": "user", "content": text}] if self.chat else text
        filled = {"prompt": prompt, "input": self.input.format(**row), **row, "answer": str(row[self.answer])}
        if isinstance(prompt, str):
            filled |= {side: continuation(prompt, row[side]) for side in ("chosen", "rejected") if side in row}
        if "play" not in row:
            return filled
        messages: list[dict[str, Any]] = [*prompt, *filled.pop("play")]
        return {**filled, "prompt": messages[:-1], "answer": messages[-1]["content"], "messages": messages}


@cache
def _recorded(name: str) -> list[Row]:
    if name in GENERATORS:
        return GENERATORS[name]()
    lines = (resources.files("vigneron") / "data" / "task_files" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]


GENERATORS: dict[str, Callable[[], list[Row]]] = {
    "opposites": lambda: opposites.generate(_recorded("antonyms")),
    "forms": forms.generate,
    "sums": sums.generate,
    "sums-warmup": sums.warm_up,
    "nim": nim.generate,
    "nim-warmup": nim.warm_up,
    "nim-positions": lambda: nim.with_all_positions(nim.generate()),
    "nim-positions-warmup": lambda: nim.with_all_positions(nim.warm_up()),
    "sum-lists": sum_lists.generate,
    "sum-lists-warmup": sum_lists.warm_up,
    **{f"guess-{width}": partial(guess.generate, width) for width in guess.WIDTHS},
    **{f"guess-{width}-warmup": partial(guess.warm_up, width) for width in guess.WIDTHS},
    **{f"maze-{size}": partial(maze.generate, size) for size in maze.SIZES},
    **{f"maze-{size}-warmup": partial(maze.warm_up, size) for size in maze.SIZES},
}
