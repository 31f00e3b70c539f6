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
from typing import Any

import torch

from vigneron.batch import Batch, concatenated
from vigneron.errors import UserError
from vigneron.timing import phase

RewardFunction = Callable[..., Any]

# A share of fewer samples than this says little.
SMALLEST_SHARE = 100


class RewardFailed(UserError):
    """A reward raised, or returned something that is not a list of numbers."""


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
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def __call__(self, batch: Batch, *, whole_step: bool = True) -> Batch:
        """Not a `whole_step`: some groups of one, which may all be missing."""
        return self._counted(self._begun(batch)(), whole_step)

    def of_parts(self, parts: Iterable[Batch], *, whole_step: bool = True) -> Batch:
        """Rewards of parts while later ones are still being made; the whole, in order."""
        waiting = [self._begun(part) for part in parts]
        with phase("reward"):
            return self._counted(concatenated([finish() for finish in waiting]), whole_step)

    def _counted(self, batch: Batch, whole_step: bool) -> Batch:
        self._count(int(batch.rewards_B.isnan().sum()), len(batch), whole_step)
        return batch

    def _begun(self, batch: Batch) -> Callable[[], Batch]:
        """Call the reward. What is returned waits for an asynchronous one, and gives the batch with its rewards."""
        extras: dict[str, tuple[Any, ...]] = {}
        metrics: dict[str, float] = {}
        result = self._guarded(lambda: self._called(batch, extras, metrics))

        def finish() -> Batch:
            found = self._guarded(result.result) if isinstance(result, Future) else result
            rewards = [self._number(value, row) for row, value in enumerate(self._listed(found, len(batch)))]
            return replace(
                batch,
                rewards_B=torch.tensor(rewards, dtype=torch.float32, device=batch.completion_BT.device),
                extras={**batch.extras, **extras},
                metrics={**batch.metrics, **metrics},
            )

        return finish

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

    def scalars(self) -> dict[str, int]:
        return {"seen": self._seen, "missing": self._missing}

    def load(self, scalars: dict[str, int]) -> None:
        self._seen, self._missing = scalars["seen"], scalars["missing"]

    def _called(self, batch: Batch, extras: dict[str, Any], metrics: dict[str, Any]) -> Any:
        """What the reward returns, or a future of it."""

        def log_extra(name: str, values: Any) -> None:
            extras[name] = tuple(values)
            if len(extras[name]) != len(batch):
                raise ValueError(f"log_extra('{name}') got {len(extras[name])} values for {len(batch)} completions")

        def log_metric(name: str, value: float) -> None:
            metrics[name] = float(value)

        result = self._function(
            prompts=list(batch.prompts),
            completions=list(batch.completions),
            completion_ids=[list(row) for row in batch.completion_lists()],
            log_extra=log_extra,
            log_metric=log_metric,
            **{name: list(column) for name, column in batch.columns.items()},
        )
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
