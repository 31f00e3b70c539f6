"""A request cut into pieces for several actors. The cut depends on the request and the config alone, never on who is
alive: whoever computes a piece, it comes to the same numbers."""

from collections.abc import Sequence
from typing import Any

# So many pieces for each actor, where they are large enough: a lost one costs little.
PIECES = 4


def pieces(sizes: Sequence[int], actors: int, smallest: int) -> list[range]:
    """Neighbouring units of such sizes, put together into pieces of about the same size, none of them empty."""
    total = sum(sizes)
    wanted = min(len(sizes), max(actors, min(PIECES * actors, total // smallest)))
    found: list[range] = []
    first = done = 0
    for unit, size in enumerate(sizes):
        done += size
        left = len(sizes) - unit - 1
        full = done * wanted >= total * (len(found) + 1)
        if full or left < wanted - len(found):
            found.append(range(first, unit + 1))
            first = unit + 1
    return found


def sample_pieces(prompts: Sequence[Sequence[int]], actors: int, smallest: int) -> list[range]:
    """Equal neighbouring prompts are computed once: they stay together, unless that leaves an actor idle."""
    starts = [i for i, prompt in enumerate(prompts) if i == 0 or list(prompt) != list(prompts[i - 1])]
    if len(starts) < actors:
        starts = list(range(len(prompts)))
    ends = [*starts[1:], len(prompts)]
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    return [range(starts[each[0]], ends[each[-1]]) for each in pieces(sizes, actors, smallest)]


def chosen(values: Sequence[Any], rows: range) -> Sequence[Any]:
    return values[rows.start : rows.stop]
