"""Which completions are set side by side, by rules that depend on the seed alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vigneron.labels.items import MOST_AT_ONCE, Comparison, digest
from vigneron.rollout.texts import completion_text


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
