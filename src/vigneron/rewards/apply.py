"""The reward slot: calls a reward of TRL's signature, checks what it returns, and keeps its parts."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, runtime_checkable

import torch

from vigneron.batch import Batch, concatenated
from vigneron.errors import UserError
from vigneron.timing import phase

RewardFunction = Callable[..., Any]

# What a part of a step came to, until the whole is known.
BEGUN = "begun"
# A share of fewer samples than this says little.
SMALLEST_SHARE = 100


class RewardFailed(UserError):
    """A reward raised, or returned something that is not a list of numbers."""


@runtime_checkable
class StepReward(Protocol):
    """A reward that needs the whole step: begun part by part, while more is sampled, and finished for all at once.

    Both are given what TRL gives a reward, `finish` also what the parts came to and the group of each sample.
    """

    @property
    def overlaps(self) -> bool: ...
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
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

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
        batch = concatenated([finish() for finish in waiting])
        if isinstance(self._function, StepReward):
            batch = self._finished(batch, self._function)
        self._count(int(batch.rewards_B.isnan().sum()), len(batch), whole_step)
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
            found = tuple(self._listed(self._guarded(wait), len(batch)))
            return replace(batch, extras={**batch.extras, BEGUN: found})

        return finish

    def _finished(self, batch: Batch, function: StepReward) -> Batch:
        extras = dict(batch.extras)
        begun = list(extras.pop(BEGUN))
        batch, log = replace(batch, extras=extras), _Log(len(batch))
        groups = batch.group_B.tolist()
        found = self._guarded(
            lambda: function.finish(begun, groups, **_arguments(batch), log_extra=log.extra, log_metric=log.metric)
        )
        return self._rewarded(batch, found, log)

    def _rewarded(self, batch: Batch, found: Any, log: "_Log") -> Batch:
        rewards = [self._number(value, row) for row, value in enumerate(self._listed(found, len(batch)))]
        return replace(
            batch,
            rewards_B=torch.tensor(rewards, dtype=torch.float32, device=batch.completion_BT.device),
            extras={**batch.extras, **log.extras},
            metrics={**batch.metrics, **log.metrics},
        )

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
        self._seen, self._missing = scalars["seen"], scalars["missing"]
        if isinstance(self._function, StepReward):
            self._function.load(scalars)

    def _called(self, batch: Batch, log: "_Log") -> Any:
        """What the reward returns, or a future of it."""
        result = self._function(**_arguments(batch), log_extra=log.extra, log_metric=log.metric)
        if inspect.isawaitable(result):
            return asyncio.run_coroutine_threadsafe(_awaited(result), _event_loop())
        return result

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except UserError:
            raise
        except SystemExit as error:
            raise RewardFailed(f"{self._name} called exit({error.code})") from error
        except Exception as error:  # the edge to the user's own code: name it, keep the cause for --debug
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}, line {at.lineno}"
            raise RewardFailed(f"{self._name} raised {type(error).__name__}: {error} ({where})") from error

    def _listed(self, result: Any, count: int) -> list[Any]:
        try:
            values = list(result)
        except TypeError as error:
            raise RewardFailed(f"{self._name} returned {result!r}, not a list of numbers") from error
        if len(values) != count:
            raise RewardFailed(f"{self._name} returned {len(values)} values for {count} completions")
        return values

    def _number(self, value: Any, row: int) -> float:
        if value is None:
            return math.nan
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise RewardFailed(f"{self._name} returned {value!r} for row {row + 1}; a missing reward is None, not NaN")
        return number


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
        **{name: list(column) for name, column in batch.columns.items()},
        "prompts": list(batch.prompts),
        "completions": list(batch.completions),
        "completion_ids": [list(row) for row in batch.completion_lists()],
    }


async def _awaited(awaitable: Any) -> Any:
    try:
        return await awaitable
    except SystemExit as error:  # let through, it would end the thread that all rewards wait for
        raise RuntimeError(f"exit({error.code})") from error


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """One for all asynchronous rewards, in a thread of its own: clients and semaphores belong to one loop."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
