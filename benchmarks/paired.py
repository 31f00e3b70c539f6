"""Paired differences between two arms with the same seeds and held-out rows, by the interval of `vigneron compare`."""

from collections.abc import Sequence

import torch

from vigneron.core.intervals import Interval, seeds_and_rows_interval


class Difference(Interval):
    """Mean of one arm minus another's, with its 95 % interval."""

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def paired_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference | None:
    """Of values [seed][row]; None of a single one."""
    values_SR, minus_SR = (torch.tensor(values, dtype=torch.float64) for values in (one, other))
    found = seeds_and_rows_interval(values_SR - minus_SR)
    return None if found is None else Difference(*found)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
