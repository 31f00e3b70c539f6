"""An answer with the judge's verdict under one rubric item, for a person to score (GRAPE)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from vigneron.labels.items import SKIP, BadChoice, Choice, digest, recorded_answer, shown_answer, shown_text
from vigneron.values import is_number

SCORES = (0, 10)
"""Range of the number that the page sends: tenths of the score."""


@dataclass(frozen=True)
class JudgedAnswer:
    """`verdict` is the judge's critique and score; the page shows the score only after the person's. It has the
    reference answer too, if there is one."""

    prompt: str
    completion: str
    category: str
    item: str
    verdict: dict[str, Any] = field(default_factory=dict, compare=False)
    kind: Literal["scores"] = "scores"

    @cached_property
    def id(self) -> str:
        return digest(self.prompt, self.completion, self.category, self.item)[:16]

    @property
    def places(self) -> int:
        return 1

    def record(self) -> dict[str, Any]:
        texts = {"prompt": self.prompt, "completion": self.completion, "category": self.category, "name": self.item}
        return {"item": self.id, "kind": self.kind, **texts, "said": self.verdict}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "JudgedAnswer | None":
        verdict = record.get("said")
        texts = [
            text for name in ("prompt", "completion", "category", "name") if isinstance(text := record.get(name), str)
        ]
        if len(texts) != 4 or not isinstance(verdict, dict):
            return None
        prompt, completion, category, name = texts
        answer = cls(prompt, completion, category, name, verdict)
        return answer if answer.id == record.get("item") else None

    def shown(self, order: Sequence[int]) -> dict[str, Any]:
        words = {name: shown_text(str(self.verdict.get(name, ""))) for name in ("description", "critique", "reasoning")}
        names = {"category": shown_text(self.category), "item": shown_text(self.item)}
        texts = {"prompt": shown_text(self.prompt), "completion": shown_text(self.completion)}
        return {"id": self.id, **texts, **names, **words, "answer": shown_answer(recorded_answer(self.verdict))}

    def choice_of(self, given: Any, order: Sequence[int]) -> Choice:
        if given == SKIP:
            return SKIP
        low, high = SCORES
        if not is_number(given) or not low <= given <= high:
            raise BadChoice(f"invalid score {given!r:.40}: expected {low} to {high}, or skip")
        return round(given / high, 3)

    def allows(self, choice: Any) -> bool:
        if isinstance(choice, str):
            return choice == SKIP
        return is_number(choice) and 0 <= choice <= 1

    def revealed(self, choice: Choice) -> dict[str, Any] | None:
        if choice == SKIP:
            return None
        judge = {name: self.verdict.get(name) for name in ("score", "confidence")}
        return {"item": shown_text(self.item), "yours": choice, "judge": judge["score"], "sure": judge["confidence"]}
