"""Groups of samples with one prompt, which is prefilled once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Group:
    """Samples of one prompt that have no rows yet. `number` is the same for all parts of a group."""

    number: int
    prompt: tuple[int, ...]
    samples: tuple[int, ...]


def prompt_groups(prompt_ids: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The tokens of the prompt and the samples of each group."""
    return [(len(group.prompt), len(group.samples)) for group in groups_of(prompt_ids)]


def groups_of(prompt_ids: Sequence[Sequence[int]]) -> list[Group]:
    """Groups of consecutive equal prompts."""
    runs = groupby(range(len(prompt_ids)), key=lambda sample: tuple(prompt_ids[sample]))
    return [Group(number, prompt, tuple(samples)) for number, (prompt, samples) in enumerate(runs)]
