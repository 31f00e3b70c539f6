"""The order of prompts: which rows each step works on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.draws import keyed_order
from vigneron.data.prompts import Row

# Separates the draws of dynamic sampling from those of the epochs' order.
MORE = 2**41


class Curriculum:
    """Shuffled epochs. A curriculum of your own overrides `at`, and whatever else it needs.

    The order is a function of (seed, step), so that a resumed run sees the same rows. A curriculum that also depends on
    what was measured keeps its state in `scalars`.
    """

    def __init__(self, rows: Sequence[Row], prompts_per_step: int, seed: int) -> None:
        self.rows, self.prompts_per_step, self.seed = rows, prompts_per_step, seed

    def at(self, step: int) -> list[Row]:
        """The rows of a step. Called once a step, on every rank, which must agree."""
        size, first = len(self.rows), step * self.prompts_per_step
        places = [divmod(place, size) for place in range(first, first + self.prompts_per_step)]
        return [self.rows[int(order_of(self.seed, epoch, size)[index])] for epoch, index in places]

    def more(self, rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        """Rows for the first, the second … attempt of dynamic sampling: other than the step's `rows`, if there are any.

        With `scale.staleness` it is called in another thread than `observe`.
        """
        others = self.others(self.rows, rows, step, attempt)
        return [others[i % len(others)] for i in range(self.prompts_per_step)]

    def others(self, among: Sequence[Row], rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        """As many rows of `among` as a step has, or all, in an order of this attempt's own; without the step's `rows`
        if there are others."""
        order = keyed_order(self.seed, MORE + 1000 * step + attempt, len(among)).tolist()
        drawn = (among[i] for i in order)
        others = list(islice((row for row in drawn if row not in rows), self.prompts_per_step))
        return others or [among[i] for i in order[: self.prompts_per_step]]

    def describe(self, rows: Sequence[Row]) -> dict[str, float]:
        """Metrics of a step's rows to log. Called for every step, before its rewards are observed."""
        return {}

    def replaced(self, batch: Batch, step: int) -> None:
        """Called with the rewarded groups that dynamic sampling drops from a step, which `observe` does not see.

        With `scale.staleness` it is called in another thread than `observe`.
        """

    def observe(self, batch: Batch) -> dict[str, float]:
        """Called with every step's rewarded batch, on every rank. Returns metrics to log."""
        return {}

    def skipped(self, step: int) -> None:
        """Called for a step that is left out because something was not finite, whether it was observed or not."""

    def scalars(self) -> dict[str, Any]:
        """State that a checkpoint keeps, as JSON."""
        return {}

    def load(self, scalars: dict[str, Any]) -> None:
        """The state of a checkpoint; {} of one that has none."""


@lru_cache(maxsize=16)
def order_of(seed: int, key: int, size: int) -> Tensor:
    """The shuffled order of an epoch, of a level or of a round."""
    return keyed_order(seed, key, size)


@dataclass(frozen=True)
class CurriculumParts:
    """A curriculum's `build(parts, options)` is handed these. `default` is shuffled epochs."""

    config: Config
    rows: Sequence[Row]
    default: Curriculum
