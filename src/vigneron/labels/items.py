"""What a person judges: two completions of one prompt, or a group of them.

An item is named by what it holds, so that the same one is known again whatever it came from. What is chosen is recorded
by its place in the item, never by where it was shown.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from vigneron.data.formats import is_conversation
from vigneron.data.texts import completion_text, prompt_text
from vigneron.text import plain

LONGEST_SHOWN = 100_000


def shown_text(text: str) -> str:
    rest = len(text) - LONGEST_SHOWN
    return plain(text[:LONGEST_SHOWN]) + (f"\n… and {rest:,} more characters" if rest > 0 else "")


def shown_prompt(prompt: Any) -> str:
    """Of a conversation with one turn, its words."""
    one_turn = not isinstance(prompt, str) and len(prompt) == 1
    return shown_text(prompt[0]["content"] if one_turn else prompt_text(prompt))


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


@dataclass
class Found:
    """What a source has to compare, and what it had to leave out."""

    items: list[Comparison] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def different(completions: Sequence[Any]) -> list[Any]:
    """The first of those with the same text; an empty one teaches nothing, and no trainer takes it."""
    found: dict[str, Any] = {}
    for completion in completions:
        text = completion_text(completion).strip()
        if text:
            found.setdefault(text, completion)
    return list(found.values())


def compared(prompt: Any, completions: Sequence[Any], kind: Literal["pairs", "best"], seed: int) -> list[Comparison]:
    """Pairs in which every completion stands at most once; or one group, of as many as there are digits."""
    order = sorted(different(completions), key=lambda text: digest(seed, prompt, text))
    if kind == "best":
        return [Comparison(prompt, tuple(order[:MOST_AT_ONCE]), "best")] if len(order) > 1 else []
    return [Comparison(prompt, tuple(order[at : at + 2])) for at in range(0, len(order) - 1, 2)]


def in_order(items: Sequence[Comparison], seed: int) -> list[Comparison]:
    """As they are judged: by chance, the same for everybody, each once."""
    by_id = {item.id: item for item in items}
    return [by_id[each] for each in sorted(by_id, key=lambda each: digest(seed, each))]
