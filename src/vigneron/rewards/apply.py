"""The reward slot: calls a reward of TRL's signature, checks what it returns, and keeps its parts."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

import torch

from vigneron.batch import Batch, concatenate
from vigneron.rewards.user_reward import NonFiniteReward, RewardFailed, begun, guarded, is_asynchronous, numbers
from vigneron.timing import phase

RewardFunction = Callable[..., Any]

# What a part of a step came to, until the whole is known.
BEGUN = "begun"
# A share of fewer samples than this says little.
SMALLEST_SHARE = 100


@runtime_checkable
class StepReward(Protocol):
    """A reward that needs the whole step: begun part by part, while more is sampled, and finished for all at once.

    Both are given what TRL gives a reward, `finish` also what the parts came to and the group of each sample.
    """

    @property
    def overlaps(self) -> bool: ...
    def close(self) -> None: ...
    def begin(self, **arguments: Any) -> Callable[[], list[Any]]: ...
    def finish(self, begun: list[Any], groups: list[int], **arguments: Any) -> list[float | None]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load(self, scalars: dict[str, Any]) -> None: ...


class ApplyReward:
    """`reward(batch)`: None (missing) becomes NaN, which takes the sample out of everything.

    When a whole step is missing, or more than `missing_limit` of all samples so far (of the first hundred, while
    there are fewer), the run stops: something is broken that training on the rest would hide.
    """

    def __init__(self, function: RewardFunction, *, missing_limit: float = 0.05, what: str = "reward") -> None:
        self._function = function
        self._name = f"{what} '{getattr(function, '__name__', type(function).__name__)}'"
        self._missing_limit = missing_limit
        self._seen = 0
        self._missing = 0

    @property
    def overlaps(self) -> bool:
        """An asynchronous reward waits for somebody else: samples that follow can be sampled meanwhile."""
        function = self._function
        if isinstance(function, StepReward):
            return function.overlaps
        return is_asynchronous(function)

    @property
    def function(self) -> RewardFunction:
        return self._function

    def __call__(self, batch: Batch, *, whole_step: bool = True) -> Batch:
        """Not a `whole_step`: some groups of one, which may all be missing."""
        return self._settled([self._begin(batch)], whole_step)

    def of_parts(self, parts: Iterable[Batch], *, whole_step: bool = True) -> Batch:
        """Rewards of parts while later ones are still being made; the whole, in order."""
        waiting = [self._begin(part) for part in parts]
        with phase("reward"):
            return self._settled(waiting, whole_step)

    def _begin(self, batch: Batch) -> Callable[[], Batch]:
        return self._begun_for_the_step(batch) if isinstance(self._function, StepReward) else self._begun(batch)

    def _settled(self, waiting: list[Callable[[], Batch]], whole_step: bool) -> Batch:
        batch = concatenate([finish() for finish in waiting])
        if isinstance(self._function, StepReward):
            batch = self._finished(batch, self._function)
        self._count(int(batch.signals.rewards_B.isnan().sum()), len(batch), whole_step)
        return batch

    def _begun(self, batch: Batch) -> Callable[[], Batch]:
        """Call the reward. What is returned waits for an asynchronous one, and gives the batch with its rewards."""
        log = _Log(len(batch))
        result = self._guarded(lambda: self._called(batch, log))

        def finish() -> Batch:
            found = self._guarded(result.result) if isinstance(result, Future) else result
            return self._rewarded(batch, found, log)

        return finish

    def _begun_for_the_step(self, batch: Batch) -> Callable[[], Batch]:
        begin: Any = self._function.begin  # type: ignore[attr-defined]
        wait = self._guarded(lambda: begin(**_arguments(batch)))

        def finish() -> Batch:
            return batch.with_samples(extras={**batch.samples.extras, BEGUN: tuple(self._guarded(wait))})

        return finish

    def _finished(self, batch: Batch, function: StepReward) -> Batch:
        extras = dict(batch.samples.extras)
        begun = list(extras.pop(BEGUN))
        batch, log = batch.with_samples(extras=extras), _Log(len(batch))
        groups = batch.samples.group_B.tolist()
        found = self._guarded(
            lambda: function.finish(begun, groups, **_arguments(batch), log_extra=log.extra, log_metric=log.metric)
        )
        return self._rewarded(batch, found, log)

    def _rewarded(self, batch: Batch, found: Any, log: "_Log") -> Batch:
        try:
            rewards = [math.nan if value is None else value for value in numbers(self._name, found, len(batch))]
        except NonFiniteReward as error:
            returned = {"returned": tuple(map(repr, found))} if isinstance(found, list | tuple) else {}
            error.batch = batch.with_samples(extras={**batch.samples.extras, **log.extras, **returned})
            raise
        return batch.with_signals(
            rewards_B=torch.tensor(rewards, dtype=torch.float32, device=batch.samples.completion_BT.device),
            metrics={**batch.signals.metrics, **{f"reward/{name}": value for name, value in log.metrics.items()}},
        ).with_samples(extras={**batch.samples.extras, **log.extras})

    def _count(self, missing: int, of: int, whole_step: bool) -> None:
        self._seen += of
        self._missing += missing
        if missing == of and whole_step and self._missing_limit < 1:
            raise RewardFailed(f"{self._name} is missing for all {of} samples of a step")
        if self._missing > self._missing_limit * max(self._seen, SMALLEST_SHARE):
            raise RewardFailed(
                f"{self._name} is missing for {self._missing} of {self._seen} samples so far, above the limit "
                f"of {self._missing_limit:.0%} (reward.missing_limit)"
            )

    def scalars(self) -> dict[str, Any]:
        own: dict[str, Any] = self._function.scalars() if isinstance(self._function, StepReward) else {}
        return {"seen": self._seen, "missing": self._missing, **own}

    def load(self, scalars: dict[str, Any]) -> None:
        self._seen, self._missing = int(scalars["seen"]), int(scalars["missing"])
        if isinstance(self._function, StepReward):
            self._function.load(scalars)

    def _called(self, batch: Batch, log: "_Log") -> Any:
        """What the reward returns, or a future of it."""
        return begun(self._function(**_arguments(batch), log_extra=log.extra, log_metric=log.metric))

    def close(self) -> None:
        if isinstance(self._function, StepReward):
            self._function.close()

    def _guarded(self, step: Callable[[], Any]) -> Any:
        return guarded(self._name, step)


class _Log:
    """What a reward says of its samples beside their rewards, by TRL's two functions."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.extras: dict[str, tuple[Any, ...]] = {}
        self.metrics: dict[str, float] = {}

    def extra(self, name: str, values: Any) -> None:
        self.extras[name] = tuple(values)
        if len(self.extras[name]) != self._count:
            raise ValueError(f"log_extra('{name}') got {len(self.extras[name])} values for {self._count} completions")

    def metric(self, name: str, value: float) -> None:
        self.metrics[name] = float(value)


def _arguments(batch: Batch) -> dict[str, Any]:
    return {
        **{name: list(column) for name, column in batch.samples.columns.items()},
        "prompts": list(batch.samples.prompts),
        "completions": list(batch.samples.completions),
        "completion_ids": [list(row) for row in batch.samples.completion_lists()],
    }
