"""The loop's slots, and what a method is given to fill them with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Critic
from vigneron.policy.model import Policy, Reference

Metrics = dict[str, float]


class Update(Protocol):
    """θ ← θ', with a state that a checkpoint keeps."""

    def __call__(self, batch: Batch) -> Metrics: ...
    def begin_at(self, step: int) -> None: ...
    def tensors(self) -> dict[str, Any]: ...
    def places(self) -> dict[str, Any]:
        """The weights that its tensors are about, by what the tensors' names begin with."""
        ...

    def scalars(self) -> dict[str, Any]: ...
    def load(self, tensors: dict[str, Any], scalars: dict[str, Any]) -> None: ...


class Memory(Protocol):
    """What a checkpoint keeps of it is JSON by question, written a line each: it grows with the data."""

    def entries(self) -> Iterator[tuple[str, Any]]:
        """As they are now: what is remembered later changes nothing in them."""
        ...

    def load(self, entries: Iterable[tuple[str, Any]]) -> None: ...


@dataclass(frozen=True)
class Method:
    """Every method is the same loop with these slots filled differently. `update` holds the loss slot."""

    rollout: Callable[..., Batch]
    """`rollout(rows, step, first)`: `first` counts the prompts of the step that stand before these."""
    reward: Callable[..., Batch]
    advantage: Callable[[Batch], Batch]
    update: Update
    critic: Critic | None = None
    memory: Memory | None = None
    """What a rollout remembers of earlier steps; a checkpoint keeps it."""
    evaluate: Callable[[Sequence[Row]], Metrics] | None = None
    """Figures of held-out rows. None: greedy completions, rewarded and checked."""
    evaluate_beside: Callable[[Sequence[Row]], Metrics] | None = None
    """Figures beside those of greedy completions."""
    resamples: int = 0
    """How often a step may put other prompts in the place of groups whose rewards do not differ."""
    notices: tuple[str, ...] = ()
    """Said once, at the run's start."""
    explain: Callable[[Metrics], tuple[str, ...]] = lambda metrics: ()
    """What a user may wonder about in a step's figures; the same line is said once."""


@dataclass(frozen=True)
class Parts:
    """What every method is built of."""

    config: Config
    policy: Policy
    reference: Reference
    reward: Callable[[Batch], Batch]
