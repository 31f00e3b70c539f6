"""Split a request into pieces for several actors. The split depends only on the request and the config, never on which
actors are alive, so a piece gives the same numbers on any actor."""

from collections.abc import Sequence
from typing import Any

# Pieces per actor, where they are large enough: losing an actor then costs little.
PIECES_PER_ACTOR = 4


def pieces(sizes: Sequence[int], actors: int, smallest: int) -> list[range]:
    """Group neighbouring units of the given sizes into non-empty pieces of about the same size."""
    total = sum(sizes)
    target = min(len(sizes), max(actors, min(PIECES_PER_ACTOR * actors, total // smallest)))
    ranges: list[range] = []
    first = done = 0
    for unit, size in enumerate(sizes):
        done += size
        left = len(sizes) - unit - 1
        full = done * target >= total * (len(ranges) + 1)
        if full or left < target - len(ranges):
            ranges.append(range(first, unit + 1))
            first = unit + 1
    return ranges


def sample_pieces(prompts: Sequence[Sequence[int]], actors: int, smallest: int) -> list[range]:
    """Pieces of a sampling request. Equal neighbouring prompts share a prefill, so they stay together unless that would
    leave an actor idle."""
    starts = [i for i, prompt in enumerate(prompts) if i == 0 or list(prompt) != list(prompts[i - 1])]
    if len(starts) < actors:
        starts = list(range(len(prompts)))
    ends = [*starts[1:], len(prompts)]
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    return [range(starts[each[0]], ends[each[-1]]) for each in pieces(sizes, actors, smallest)]


def chosen(values: Sequence[Any], rows: range) -> Sequence[Any]:
    return values[rows.start : rows.stop]
