"""The reward slot: calls a reward of TRL's signature, checks what it returns, and keeps its parts."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from vigneron.batch import Batch, concatenated
from vigneron.rewards.calling import RewardFailed, begun, guarded, is_asynchronous, numbers
from vigneron.timing import phase

RewardFunction = Callable[..., Any]

# A share of fewer samples than this says little.
SMALLEST_SHARE = 100


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
        return is_asynchronous(self._function)

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
        result = guarded(self._name, lambda: self._called(batch, extras, metrics))

        def finish() -> Batch:
            found = guarded(self._name, result.result) if isinstance(result, Future) else result
            rewards = [math.nan if value is None else value for value in numbers(self._name, found, len(batch))]
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
        return begun(result)
