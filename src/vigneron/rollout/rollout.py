"""The rollout slot: where a step's samples come from."""

from collections.abc import Sequence
from typing import Protocol

from vigneron.batch import Batch
from vigneron.data.prompts import Row


class Rollout(Protocol):
    """`rollout(rows, step, first)`: a batch of samples for these rows. `first` counts the rows of the step before them:
    a sample's draws are keyed by its number in the step, so they do not depend on how a step is split."""

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch: ...
