"""The reward slot of several ranks: rank 0 computes the rewards and broadcasts them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from vigneron.batch import Batch, concatenate
from vigneron.distributed import ranks
from vigneron.errors import NonFinite, UserError
from vigneron.rewards.apply import ApplyReward, RewardFunction

Broadcast = tuple[list[float], dict[str, tuple[Any, ...]], dict[str, float]]


class Rank0Reward:
    """An `ApplyReward` whose judges, embedders and caches exist on rank 0 only."""

    def __init__(self, inner: ApplyReward) -> None:
        self._inner = inner

    @property
    def overlaps(self) -> bool:
        return self._inner.overlaps

    @property
    def function(self) -> RewardFunction:
        return self._inner.function

    def __call__(self, batch: Batch, *, whole_step: bool = True) -> Batch:
        return _broadcast(batch, lambda: self._inner(batch, whole_step=whole_step))

    def evaluate(self, batch: Batch) -> Batch:
        return _broadcast(batch, lambda: self._inner.evaluate(batch))

    def of_parts(self, parts: Iterable[Batch], *, whole_step: bool = True) -> Batch:
        if not ranks.is_rank0():
            return _broadcast(concatenate(list(parts)), lambda: None)  # type: ignore[arg-type, return-value]
        rest, sampled = iter(parts), list[Batch]()
        sampling = False

        def record_parts() -> Iterable[Batch]:
            nonlocal sampling
            while True:
                sampling = True
                part = next(rest, None)
                sampling = False
                if part is None:
                    return
                sampled.append(part)
                yield part

        failed: UserError | None = None
        try:
            rewarded = self._inner.of_parts(record_parts(), whole_step=whole_step)
        except UserError as error:
            if sampling:
                raise
            failed = error
            sampled.extend(rest)  # the other ranks sample all parts too

        def result() -> Batch:
            if failed is not None:
                raise failed
            return rewarded

        return _broadcast(concatenate(sampled), result)

    def scalars(self) -> dict[str, Any]:
        return self._inner.scalars()

    def load(self, scalars: dict[str, Any]) -> None:
        self._inner.load(scalars)

    def close(self) -> None:
        self._inner.close()


def _broadcast(batch: Batch, compute: Callable[[], Batch]) -> Batch:
    """The batch with the rewards that `compute` gives on rank 0."""

    def computed() -> Broadcast:
        rewarded = compute()
        return rewarded.signals.rewards_B.tolist(), rewarded.samples.extras, rewarded.signals.metrics

    try:
        rewards, extras, metrics = ranks.run_on_rank0(computed)
    except NonFinite as error:
        error.batch = error.batch or batch
        raise
    rewards_B = torch.tensor(rewards, dtype=torch.float32, device=batch.samples.completion_BT.device)
    return batch.with_signals(rewards_B=rewards_B, metrics=metrics).with_samples(extras=extras)
