"""A solution whose steps a person labels: right, wrong or unclear."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from vigneron.data.formats import is_conversation
from vigneron.data.steps import step_spans
from vigneron.labels.items import (
    SKIP,
    BadChoice,
    Choice,
    answer_record,
    digest,
    recorded_answer,
    shown_answer,
    shown_prompt,
    shown_text,
)


@dataclass(frozen=True)
class Solution:
    """A choice is a text with one mark for each step."""

    prompt: Any
    completion: str
    separator: str = "\n"
    kind: Literal["steps"] = "steps"
    answer: str | None = field(default=None, compare=False)
    """The reference answer, shown on demand."""

    MARKS: ClassVar[dict[str, str]] = {"right": "1", "wrong": "0", "unclear": "?"}

    @cached_property
    def id(self) -> str:
        return digest(self.prompt, self.completion, self.separator)[:16]

    @cached_property
    def steps(self) -> list[str]:
        return [self.completion[start:stop] for start, stop in step_spans(self.completion, self.separator)]

    @property
    def places(self) -> int:
        return 1

    def record(self) -> dict[str, Any]:
        texts = {"prompt": self.prompt, "completion": self.completion, "separator": self.separator}
        return {"item": self.id, "kind": self.kind, **texts, **answer_record(self.answer)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Solution | None":
        prompt, completion, separator = (record.get(name) for name in ("prompt", "completion", "separator"))
        if not isinstance(prompt, str) and not (prompt and is_conversation(prompt)):
            return None
        if not isinstance(completion, str) or not isinstance(separator, str) or not separator:
            return None
        solution = cls(prompt, completion, separator, answer=recorded_answer(record))
        return solution if solution.id == record.get("item") and solution.steps else None

    def shown(self, order: Sequence[int]) -> dict[str, Any]:
        texts = {"prompt": shown_prompt(self.prompt), "answer": shown_answer(self.answer)}
        return {"id": self.id, **texts, "steps": [shown_text(step) for step in self.steps]}

    def choice_of(self, given: Any, order: Sequence[int]) -> Choice:
        if given == SKIP:
            return SKIP
        count = len(self.steps)
        known = isinstance(given, list) and len(given) == count and all(isinstance(mark, str) for mark in given)
        if not known or not set(given) <= set(self.MARKS):
            raise BadChoice(
                f"invalid labels {given!r:.40}: expected right, wrong or unclear for {count} steps, or skip"
            )
        return "".join(self.MARKS[mark] for mark in given)

    def allows(self, choice: Any) -> bool:
        if choice == SKIP:
            return True
        return isinstance(choice, str) and len(choice) == len(self.steps) and set(choice) <= set(self.MARKS.values())

    def revealed(self, choice: Choice) -> None:
        return None

    def labels(self, choices: Mapping[str, Choice]) -> list[int | None]:
        """For each step what most people say, of those who are clear about it; None where they are evenly split."""
        given = [str(choice) for choice in choices.values() if choice != SKIP]
        margins = [sum((marks[at] == "1") - (marks[at] == "0") for marks in given) for at in range(len(self.steps))]
        return [None if margin == 0 else int(margin > 0) for margin in margins]
