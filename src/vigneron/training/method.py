"""The loop's slots: what a method fills in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vigneron.batch import Batch
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Critic
from vigneron.rollout.build import Rollout

Metrics = dict[str, float]


class Update(Protocol):
    """θ ← θ'. A checkpoint keeps its state."""

    def __call__(self, batch: Batch) -> Metrics: ...
    def begin_at(self, step: int) -> None: ...
    def tensors(self) -> dict[str, Any]: ...
    def weights(self) -> dict[str, Any]:
        """The weights that it trains, as `actor.NAME` and `critic.NAME`; its tensors are named after them."""
        ...

    def scalars(self) -> dict[str, Any]: ...
    def load(self, tensors: dict[str, Any], scalars: dict[str, Any]) -> None: ...


class Memory(Protocol):
    """What a rollout remembers of earlier steps. A checkpoint keeps it as JSON, one line an entry."""

    def entries(self) -> Iterator[tuple[str, Any]]:
        """A snapshot: later changes do not show in it."""
        ...

    def load(self, entries: Iterable[tuple[str, Any]]) -> None: ...


@dataclass(frozen=True)
class Method:
    """Every method is the same loop with these slots filled differently. `update` holds the loss."""

    rollout: Rollout
    reward: Callable[..., Batch]
    advantage: Callable[[Batch], Batch]
    update: Update
    memory: Memory | None = None
    evaluate: Callable[[Sequence[Row]], Metrics] | None = None
    """Metrics of held-out rows. None: greedy completions, rewarded and checked."""
    evaluate_beside: Callable[[Sequence[Row]], Metrics] | None = None
    """Metrics in addition to those of greedy completions."""
    resamples: int = 0
    """Dynamic sampling: how often a step may replace groups whose rewards are all equal."""
    critic: Critic | None = None
    """Values before every token that a search at test time can go by; None: the method has none to offer."""
    notices: tuple[str, ...] = ()
    """Printed once, at the start of the run."""
    explain: Callable[[Metrics], tuple[str, ...]] = lambda metrics: ()
    """What a user may wonder about in a step's metrics; each line is printed once."""


def unchanged(batch: Batch) -> Batch:
    """The slot of a method that needs no reward, or no advantage."""
    return batch
