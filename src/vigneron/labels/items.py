"""Items to label: two completions of one prompt, or a group of them.

An item's id is a hash of its content, so that the same item is recognised whatever its source. A choice is recorded as
the index in the item, not as the position on the page.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, completion_text, conversation_text, prompt_text
from vigneron.policy.message_forms import message_text
from vigneron.run_store.sample_turns import MODEL, MOST_TURNS, Turn, turns_of, without_notes
from vigneron.text import plain
from vigneron.values import is_number

LONGEST_SHOWN = 100_000


def shown_text(text: str) -> str:
    rest = len(text) - LONGEST_SHOWN
    return plain(text[:LONGEST_SHOWN]) + (f"\n… and {rest:,} more characters" if rest > 0 else "")


def shown_prompt(prompt: Any) -> str:
    """The prompt's text; for a conversation of one message, its content."""
    one_turn = not isinstance(prompt, str) and len(prompt) == 1
    return shown_text(message_text(prompt[0]) if one_turn else prompt_text(prompt))


def shown_completion(completion: Any) -> Any:
    """A text, or of a conversation its turns."""
    if isinstance(completion, str) or (len(completion) == 1 and "reward" not in completion[0]):
        return shown_text(completion_text(completion))
    turns = [_shown_turn(turn) for turn in turns_of(completion[:MOST_TURNS])]
    return {"turns": turns, "left_out": max(0, len(completion) - MOST_TURNS)}


def _shown_turn(turn: Turn) -> dict[str, Any]:
    """Without what the environment logged, which could decide for the labeller."""
    texts = {name: shown_text(value) if isinstance(value, str) else value for name, value in vars(turn).items()}
    calls = [{name: shown_text(text) for name, text in vars(call).items()} for call in turn.calls]
    return {**texts, "calls": calls, "log": None}


Kind = Literal["pairs", "best", "scores", "steps"]
Choice = int | float | str
"""Index of the chosen completion, a score, a mark for each step, `tie` or `skip`."""

TIE, SKIP = "tie", "skip"
LARGEST_GROUP = 9
"""A completion is chosen with one digit key."""


class BadChoice(ValueError):
    """An invalid choice; the message is sent back to the page."""


class Item(Protocol):
    """`choice_of` parses what the page sent, given the order in which it showed the completions."""

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


def digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def shuffled(count: int, *key: Any) -> list[int]:
    """A permutation of 0 … count - 1 that depends on the key alone."""
    return sorted(range(count), key=lambda place: digest(*key, place))


@dataclass(frozen=True)
class Comparison:
    """Prompt and completions are in TRL's formats: strings, or lists of messages. Of a conversation with an environment
    the messages have its rewards, which are shown on demand and are not written into rows."""

    prompt: Any
    completions: tuple[Any, ...]
    kind: Literal["pairs", "best"] = "pairs"
    tools: Any = None
    """That the chat template writes before the prompt."""
    answer: str | None = field(default=None, compare=False)
    """The reference answer, if there is one. It and the rewards are shown on demand, and are no part of the id."""
    rewards: tuple[float | None, ...] | None = field(default=None, compare=False)
    """What the run's reward gave each completion."""

    LETTERS: ClassVar[tuple[str, ...]] = ("a", "b")

    @cached_property
    def id(self) -> str:
        return digest(self.prompt, self.completions, *([] if self.tools is None else [self.tools]))[:16]

    @property
    def places(self) -> int:
        return len(self.completions)

    def record(self) -> dict[str, Any]:
        texts = {"prompt": self.prompt, "completions": list(self.completions)}
        rewards = {} if self.rewards is None else {"rewards": list(self.rewards)}
        return {"item": self.id, "kind": self.kind, **texts, **self._tools(), **answer_record(self.answer), **rewards}

    def _tools(self) -> Row:
        return {} if self.tools is None else {"tools": self.tools}

    def row(self, **completions: Any) -> Row:
        """A row for training: the prompt with these completions."""
        return {"prompt": self.prompt, **self._tools(), **completions}

    def trained(self, place: int) -> Any:
        """A completion as rows have it."""
        return without_notes(self.completions[place])

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Comparison | None":
        """None if the record is malformed, or does not match its id."""
        prompt, completions, kind = (record.get(name) for name in ("prompt", "completions", "kind"))
        if kind not in ("pairs", "best") or not _is_text_or_messages(prompt) or not isinstance(completions, list):
            return None
        if not 2 <= len(completions) <= (2 if kind == "pairs" else LARGEST_GROUP) or not all(
            map(_is_text_or_messages, completions)
        ):
            return None
        rewards = _rewards(record.get("rewards"), len(completions))
        item = cls(prompt, tuple(completions), kind, record.get("tools"), recorded_answer(record), rewards)
        return item if item.id == record.get("item") else None

    def shown(self, order: Sequence[int]) -> dict[str, Any]:
        shown = [shown_completion(self.completions[place]) for place in order]
        rewards = None if self.rewards is None else [self.rewards[place] for place in order]
        texts = {"prompt": shown_prompt(self.prompt), "answer": shown_answer(self.answer)}
        return {"id": self.id, **texts, "completions": shown, "rewards": rewards}

    def choice_of(self, given: Any, order: Sequence[int]) -> Choice:
        if given == SKIP or (given == TIE and self.kind == "pairs"):
            return str(given)
        if self.kind == "pairs":
            if given not in self.LETTERS:
                raise BadChoice(f"invalid choice {given!r:.40}: expected a, b, tie or skip")
            return order[self.LETTERS.index(given)]
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= self.places:
            raise BadChoice(f"invalid choice {given!r:.40}: expected 1 to {self.places}, or skip")
        return order[given - 1]

    def allows(self, choice: Any) -> bool:
        if isinstance(choice, str):
            return choice == SKIP or (choice == TIE and self.kind == "pairs")
        return isinstance(choice, int) and not isinstance(choice, bool) and 0 <= choice < self.places

    def revealed(self, choice: Choice) -> None:
        return None


def answer_record(answer: str | None) -> dict[str, str]:
    return {} if answer is None else {"answer": answer}


def recorded_answer(record: dict[str, Any]) -> str | None:
    return answer if isinstance(answer := record.get("answer"), str) else None


def shown_answer(answer: str | None) -> str | None:
    return None if answer is None else shown_text(answer)


def reference_answer(value: Any) -> str | None:
    """A row's `answer` as text; None if it has none."""
    return None if value in (None, "", []) else completion_text(value)


def _rewards(value: Any, count: int) -> tuple[float | None, ...] | None:
    known = isinstance(value, list) and len(value) == count
    return tuple(value) if known and all(each is None or is_number(each) for each in value) else None


def _is_text_or_messages(value: Any) -> bool:
    return isinstance(value, str) or (is_conversation(value) and bool(value))


@dataclass
class Collected:
    """Comparisons from a source, and notices about what was left out."""

    items: list[Comparison] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def distinct(completions: Sequence[Any]) -> list[Any]:
    """Completions with different texts, without empty ones and those with an empty turn, which trainers reject."""
    by_text: dict[str, Any] = {}
    for completion in completions:
        if all(text.strip() for text in _answers(completion)):
            by_text.setdefault(text_of(completion), completion)
    return list(by_text.values())


def text_of(completion: Any) -> str:
    """What makes completions different."""
    return conversation_text(completion).strip()


def _answers(completion: Any) -> list[str]:
    if isinstance(completion, str):
        return [completion]
    return [message_text(message) for message in completion if message["role"] == MODEL]


def in_format_of(prompt: Any, texts: Sequence[str]) -> list[Any]:
    """The texts as they are, or as assistant messages if the prompt is a conversation."""
    return list(texts) if isinstance(prompt, str) else [[{"role": "assistant", "content": text}] for text in texts]


def make_comparisons(
    prompt: Any, completions: Sequence[Any], kind: Literal["pairs", "best"], seed: int, tools: Any = None
) -> list[Comparison]:
    """Pairs that use every completion at most once; or one group of at most LARGEST_GROUP."""
    order = sorted(distinct(completions), key=lambda text: digest(seed, prompt, text))
    if kind == "best":
        return [Comparison(prompt, tuple(order[:LARGEST_GROUP]), "best", tools)] if len(order) > 1 else []
    return [Comparison(prompt, tuple(order[at : at + 2]), tools=tools) for at in range(0, len(order) - 1, 2)]


def in_random_order(items: Sequence[Comparison], seed: int) -> list[Comparison]:
    """The order of labelling: random, the same for every labeller, without duplicates."""
    by_id = {item.id: item for item in items}
    return [by_id[item] for item in sorted(by_id, key=lambda item: digest(seed, item))]
