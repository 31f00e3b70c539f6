"""Held-out prompts that are also in the training data."""

from collections.abc import Sequence

from vigneron.data.digests import prompt_digest
from vigneron.data.prompts import Row, prompt_text


class HeldOutPrompts:
    """The held-out prompts, and those of them that are in the training data too."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.prompts = {prompt_digest(row) for row in rows}
        """Hashes."""
        self.both = set[bytes]()

    def notices(self) -> list[str]:
        both = [(number, row) for number, row in enumerate(self.rows, start=1) if prompt_digest(row) in self.both]
        if not both:
            return []
        number, row = both[0]
        return [
            f"{len(both)} of {len(self.rows)} prompts of `held_out` are also in `train`, the first in row {number}: "
            f"{prompt_text(row['prompt'])[:60]!r}; held-out metrics do not measure generalization on them"
        ]
