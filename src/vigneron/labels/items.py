"""What a person judges: two completions of one prompt, or a group of them.

An item is named by what it holds, so that the same one is known again whatever it came from. What is chosen is recorded
by its place in the item, never by where it was shown.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from vigneron.labels.shown import shown_prompt, shown_text
from vigneron.rollout.formats import is_conversation
from vigneron.rollout.texts import completion_text

Kind = Literal["pairs", "best", "scores"]
Choice = int | float | str
"""The place of the chosen completion, a score, `tie` or `skip`."""

TIE, SKIP = "tie", "skip"
MOST_AT_ONCE = 9
"""One digit chooses."""


class BadChoice(ValueError):
    """Said in one line to whoever sent it."""


class Item(Protocol):
    """`choice_of` reads what a page sent, by the order in which it showed the completions."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def places(self) -> int: ...
    def record(self) -> dict[str, Any]: ...
    def shown(self, order: Sequence[int]) -> dict[str, Any]: ...
    def choice_of(self, given: Any, order: Sequence[int]) -> Choice: ...
    def allows(self, choice: Any) -> bool: ...
    def revealed(self, choice: Choice) -> dict[str, Any] | None: ...


def digest(*words: Any) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def shuffled(count: int, *key: Any) -> list[int]:
    """An order of 0 … count - 1 that depends on the key alone."""
    return sorted(range(count), key=lambda place: digest(*key, place))


@dataclass(frozen=True)
class Comparison:
    """Both in TRL's forms: texts, or messages."""

    prompt: Any
    completions: tuple[Any, ...]
    kind: Literal["pairs", "best"] = "pairs"

    LETTERS: ClassVar[tuple[str, ...]] = ("a", "b")

    @cached_property
    def id(self) -> str:
        return digest(self.prompt, self.completions)[:16]

    @property
    def places(self) -> int:
        return len(self.completions)

    def record(self) -> dict[str, Any]:
        return {"item": self.id, "kind": self.kind, "prompt": self.prompt, "completions": list(self.completions)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Comparison | None":
        """None for what is not of its shape, or is not what its name says."""
        prompt, completions, kind = (record.get(name) for name in ("prompt", "completions", "kind"))
        if kind not in ("pairs", "best") or not _is_form(prompt) or not isinstance(completions, list):
            return None
        if not 2 <= len(completions) <= (2 if kind == "pairs" else MOST_AT_ONCE) or not all(map(_is_form, completions)):
            return None
        found = cls(prompt, tuple(completions), kind)
        return found if found.id == record.get("item") else None

    def shown(self, order: Sequence[int]) -> dict[str, Any]:
        texts = [shown_text(completion_text(self.completions[place])) for place in order]
        return {"id": self.id, "prompt": shown_prompt(self.prompt), "completions": texts}

    def choice_of(self, given: Any, order: Sequence[int]) -> Choice:
        if given == SKIP or (given == TIE and self.kind == "pairs"):
            return str(given)
        if self.kind == "pairs":
            if given not in self.LETTERS:
                raise BadChoice(f"no choice: {given!r:.40} (there are: a, b, tie, skip)")
            return order[self.LETTERS.index(given)]
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= self.places:
            raise BadChoice(f"no choice: {given!r:.40} (there are: 1 to {self.places}, skip)")
        return order[given - 1]

    def allows(self, choice: Any) -> bool:
        if isinstance(choice, str):
            return choice == SKIP or (choice == TIE and self.kind == "pairs")
        return isinstance(choice, int) and not isinstance(choice, bool) and 0 <= choice < self.places

    def revealed(self, choice: Choice) -> None:
        return None


def _is_form(value: Any) -> bool:
    return isinstance(value, str) or (is_conversation(value) and bool(value))
