"""A task: its prompts and recorded parent answers, split into train and held-out."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from vigneron.errors import UserError, did_you_mean
from vigneron.rollout.prompts import Row


@dataclass(frozen=True)
class Task:
    """`child_prompt` is the paper's; `parent_instruction` is in our words, with the paper's rules."""

    name: str
    about: str
    child_prompt: str
    parent_instruction: str

    def rows(self, split: str, template: str | None = None) -> list[Row]:
        """Prompts with the parent's `answer`; `split` is `train` or `held_out`."""
        prompt = template or self.child_prompt
        try:
            return [{"prompt": prompt.format(**row), **row} for row in _recorded(self.name) if row["split"] == split]
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise UserError(f"data.template: {prompt!r} cannot be filled from the task's columns: {error!r}") from error


@cache
def _recorded(name: str) -> list[Row]:
    lines = (resources.files("vigneron") / "tasks" / "data" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]


ANTONYMS = Task(
    name="antonyms",
    about="a word, answered with its opposite",
    child_prompt="The opposite of '{word}' is ",
    parent_instruction="""\
You give the opposite of a word.
The INPUT is one English word. Answer with the one word that most people would call its opposite.

For example:
- "hot" → "cold"
- "up" → "down"
- "empty" → "full"
- "old" → "young"

Rules:
- One word, in lowercase letters.
- Nothing else: no punctuation, no explanation, no second choice.
- The answer has the form {"OUTPUT": "<word>"}.
""",
)

TASKS = {task.name: task for task in (ANTONYMS,)}


def load_task(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"data.task: there is no task '{name}'{did_you_mean(name, TASKS)}")
    return TASKS[name]
