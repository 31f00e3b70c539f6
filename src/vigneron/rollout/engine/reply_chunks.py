"""Which replies are read in passes of their own, and which one token a decode step along with the other rows."""

from collections.abc import Sequence

READ_FROM = 8
"""Decode steps that a pass over replies must save. On a CPU 4 are enough; steps in CUDA graphs cost less."""


def reply_chunks(lengths: Sequence[int], rows: int, most: int) -> list[list[int]]:
    """The replies that are read in each pass, by their places in `lengths`: passes of at most `most` tokens with
    padding. `rows` are the rows that are decoded, those that read replies included.

    A row that reads L tokens by decoding them takes L steps of one row, and a step decodes all rows: so the replies
    cost Σ L / rows steps. Few short replies beside many rows are read by the way.
    """
    long = sorted((i for i, length in enumerate(lengths) if length >= READ_FROM), key=lambda i: -lengths[i])
    if sum(lengths[i] for i in long) < READ_FROM * rows:
        return []
    chunks: list[list[int]] = []
    for i in long:
        widest = lengths[chunks[-1][0]] if chunks else 0
        if 2 * lengths[i] > widest > 0 and widest * (len(chunks[-1]) + 1) <= most:
            chunks[-1].append(i)
        else:
            chunks.append([i])
    return chunks
