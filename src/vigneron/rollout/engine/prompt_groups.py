"""Groups of samples with one prompt, which is prefilled once."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Samples of one prompt that are admitted together."""

    prompt: tuple[int, ...]
    samples: tuple[int, ...]


def prompt_groups(prompt_ids: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The tokens of the prompt and the samples of each group."""
    return [(len(group.prompt), len(group.samples)) for group in groups_of(prompt_ids, len(prompt_ids))]


def groups_of(prompt_ids: Sequence[Sequence[int]], largest: int) -> list[Group]:
    """Groups of consecutive equal prompts, at most `largest` samples each."""
    groups: list[Group] = []
    for i, ids in enumerate(prompt_ids):
        if groups and groups[-1].prompt == tuple(ids) and len(groups[-1].samples) < largest:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].samples, i))
        else:
            groups.append(Group(tuple(ids), (i,)))
    return groups
