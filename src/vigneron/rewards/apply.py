"""The reward slot: calls a reward with TRL's signature, checks its result, and records its parts."""

import math
import operator
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vigneron.batch import Batch, concatenate, to_device
from vigneron.config import Config
from vigneron.core.shaping import soft_overlong
from vigneron.data.prompts import completion_text
from vigneron.rewards.user_reward import NonFiniteReward, RewardFailed, checked_rewards, is_async, named_errors, started
from vigneron.rollout.conversations import EARNED, ERROR, REWARD
from vigneron.timing import phase

RewardFunction = Callable[..., Any]

# Key in `Batch.extras` of a part's intermediate results, until the whole step is there.
BEGUN = "begun"
# What a reward logs as this extra are rewards within completions, for methods that take them: for each completion a
# list of [characters, reward], each on the token that completes so many characters. None: no reward within it.
STEP_REWARDS = "step_rewards"
# Key in `Batch.extras` of what the reward reads, where it is not the whole completion.
SEEN = "seen"
# `missing_limit` applies to at least this many samples.
LIMIT_FLOOR = 100


@runtime_checkable
class StepReward(Protocol):
    """A reward that needs the whole step: `begin` starts each part while more is sampled, `finish` takes all samples.

    Both get the arguments of a TRL reward; `finish` also gets the results of `begin` and each sample's group.
    """

    @property
    def overlaps(self) -> bool: ...
    def close(self) -> None: ...
    def begin(self, **arguments: Any) -> Callable[[], list[Any]]: ...
    def finish(self, begun: list[Any], groups: list[int], **arguments: Any) -> list[float | None]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load(self, scalars: dict[str, Any]) -> None: ...


class ApplyReward:
    """`reward(batch)`: None (missing) becomes NaN, and the sample is ignored.

    The run stops if every reward of a step is missing, or more than `missing_limit` of all samples so far (counting at
    least a hundred): training on the rest would hide a fault.
    """

    def __init__(
        self,
        function: RewardFunction,
        *,
        missing_limit: float = 0.05,
        what: str = "reward",
        delimiter: str | None = None,
        overlong: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        """`delimiter`: the reward reads only what follows it. `overlong`: a penalty for each sample, added to it."""
        self._function = function
        self._delimiter, self._overlong = delimiter, overlong
        self._name = f"{what} '{getattr(function, '__name__', type(function).__name__)}'"
        self._missing_limit = missing_limit
        self._seen = 0
        self._missing = 0

    @classmethod
    def of(cls, config: Config, function: RewardFunction) -> "ApplyReward":
        """As the config's `reward` section says."""
        options, overlong = config.reward, config.reward.overlong

        def penalty(batch: Batch) -> Tensor:
            assert overlong is not None
            written_B = to_device(batch.samples.written, batch.samples.completion_BT.device)
            return overlong.penalty * soft_overlong(written_B, limit=config.written_tokens, buffer=overlong.buffer)

        return cls(
            function,
            missing_limit=1.0 if config.answers_are_optional else options.missing_limit,
            delimiter=options.delimiter if options.sees == "answer" else None,
            overlong=None if overlong is None else penalty,
        )

    @property
    def overlaps(self) -> bool:
        """Whether sampling can continue while the reward is computed: true of asynchronous rewards."""
        function = self._function
        if isinstance(function, StepReward):
            return function.overlaps
        return is_async(function)

    @property
    def function(self) -> RewardFunction:
        return self._function

    def __call__(self, batch: Batch, *, whole_step: bool = True) -> Batch:
        """`whole_step` False: the batch is part of a step, and all its rewards may be missing."""
        return self._finish_all([self._begin(batch)], whole_step)

    def evaluate(self, batch: Batch) -> Batch:
        """The rewards of completions that are not trained on."""
        with getattr(self._function, "measuring", nullcontext)():
            return self(batch)

    def of_parts(self, parts: Iterable[Batch], *, whole_step: bool = True) -> Batch:
        """Starts each part's reward while the next is sampled; returns the whole batch, in order."""
        waiting = [self._begin(part) for part in parts]
        with phase("reward"):
            return self._finish_all(waiting, whole_step)

    def _begin(self, batch: Batch) -> Callable[[], Batch]:
        if self._delimiter is not None:
            batch = with_seen(batch, self._delimiter)
        return self._begin_step_reward(batch) if isinstance(self._function, StepReward) else self._call(batch)

    def _finish_all(self, waiting: list[Callable[[], Batch]], whole_step: bool) -> Batch:
        batch = concatenate([finish() for finish in waiting])
        if isinstance(self._function, StepReward):
            batch = self._finish_step_reward(batch, self._function)
        errors = (error for error in batch.samples.extras.get(ERROR, ()) if error is not None)
        because = next((f"; the environment {error}" for error in errors), "")
        self._count(int(batch.signals.rewards_B.isnan().sum()), len(batch), whole_step, because)
        return batch

    def _call(self, batch: Batch) -> Callable[[], Batch]:
        """Call the reward. The returned function waits for an asynchronous one and gives the batch with its rewards."""
        log = _Log(len(batch), SEEN in batch.samples.extras)
        result = self._named_errors(
            lambda: started(self._function(**_arguments(batch), log_extra=log.extra, log_metric=log.metric))
        )

        def finish() -> Batch:
            values = self._named_errors(result.result) if isinstance(result, Future) else result
            return self._with_rewards(batch, values, log)

        return finish

    def _begin_step_reward(self, batch: Batch) -> Callable[[], Batch]:
        begin: Any = self._function.begin  # type: ignore[attr-defined]
        wait = self._named_errors(lambda: begin(**_arguments(batch)))

        def finish() -> Batch:
            return batch.with_samples(extras={**batch.samples.extras, BEGUN: tuple(self._named_errors(wait))})

        return finish

    def _finish_step_reward(self, batch: Batch, function: StepReward) -> Batch:
        extras = dict(batch.samples.extras)
        begun = list(extras.pop(BEGUN))
        batch, log = batch.with_samples(extras=extras), _Log(len(batch), SEEN in batch.samples.extras)
        groups = batch.samples.group_B.tolist()
        values = self._named_errors(
            lambda: function.finish(begun, groups, **_arguments(batch), log_extra=log.extra, log_metric=log.metric)
        )
        return self._with_rewards(batch, values, log)

    def _with_rewards(self, batch: Batch, values: Any, log: "_Log") -> Batch:
        try:
            checked = checked_rewards(self._name, values, len(batch))
            rewards = [math.nan if value is None else value for value in checked]
        except NonFiniteReward as error:
            returned = {"returned": tuple(map(repr, values))} if isinstance(values, list | tuple) else {}
            error.batch = batch.with_samples(extras={**batch.samples.extras, **log.extras, **returned})
            raise
        rewards_B = torch.tensor(rewards, dtype=torch.float32, device=batch.samples.completion_BT.device)
        metrics = {f"reward/{name}": value for name, value in log.metrics.items()}
        if self._overlong is not None:
            penalty_B = self._overlong(batch)
            rewards_B, metrics["reward/overlong"] = rewards_B + penalty_B, float(penalty_B.mean())
        failed = [error is not None for error in batch.samples.extras.get(ERROR, ())]
        if any(failed):  # a conversation that broke off is no bad one
            rewards_B = rewards_B.masked_fill(torch.tensor(failed, device=rewards_B.device), math.nan)
        if self._delimiter is not None:
            has_delimiter = [self._delimiter in completion_text(text) for text in batch.samples.completions]
            metrics["completions/answered"] = sum(has_delimiter) / len(has_delimiter)
        return batch.with_signals(rewards_B=rewards_B, metrics={**batch.signals.metrics, **metrics}).with_samples(
            extras={**batch.samples.extras, **log.extras}
        )

    def _count(self, missing: int, of: int, whole_step: bool, because: str = "") -> None:
        self._seen += of
        self._missing += missing
        if missing == of and whole_step and self._missing_limit < 1:
            raise RewardFailed(f"{self._name} is missing for all {of} samples of a step{because}")
        if self._missing > self._missing_limit * max(self._seen, LIMIT_FLOOR):
            raise RewardFailed(
                f"{self._name} is missing for {self._missing} of {self._seen} samples so far, above the limit "
                f"of {self._missing_limit:.0%} (reward.missing_limit){because}"
            )

    def scalars(self) -> dict[str, Any]:
        own: dict[str, Any] = self._function.scalars() if isinstance(self._function, StepReward) else {}
        return {"seen": self._seen, "missing": self._missing, **own}

    def load(self, scalars: dict[str, Any]) -> None:
        self._seen, self._missing = int(scalars["seen"]), int(scalars["missing"])
        if isinstance(self._function, StepReward):
            self._function.load(scalars)

    def close(self) -> None:
        if isinstance(self._function, StepReward):
            self._function.close()

    def _named_errors(self, step: Callable[[], Any]) -> Any:
        return named_errors(self._name, step)


def with_seen(batch: Batch, delimiter: str) -> Batch:
    """With what follows the delimiter, which rewards and the checker then read."""
    seen = tuple(after(completion, delimiter) for completion in batch.samples.completions)
    return batch.with_samples(extras={**batch.samples.extras, SEEN: seen})


def after(completion: Any, delimiter: str) -> Any:
    """What follows the last delimiter, as text or as messages; empty if it does not occur."""
    text = completion_text(completion).rpartition(delimiter)
    answer = text[2].strip() if text[1] else ""
    return answer if isinstance(completion, str) else [{**completion[-1], "content": answer}]


class _Log:
    """Collects what a reward logs through TRL's `log_extra` and `log_metric`."""

    def __init__(self, count: int, answer_only: bool) -> None:
        self._count, self._answer_only = count, answer_only
        self.extras: dict[str, tuple[Any, ...]] = {}
        self.metrics: dict[str, float] = {}

    def extra(self, name: str, values: Any) -> None:
        values = self.extras[name] = tuple(values)
        if len(self.extras[name]) != self._count:
            raise ValueError(f"log_extra('{name}') got {len(self.extras[name])} values for {self._count} completions")
        if name == STEP_REWARDS and self._answer_only:
            raise ValueError(f"log_extra('{name}') needs the whole completion: leave out `reward.sees: answer`")
        if name == STEP_REWARDS:
            self.extras[name] = tuple(_step_rewards(given, row) for row, given in enumerate(values, start=1))

    def metric(self, name: str, value: float) -> None:
        self.metrics[name] = float(value)


def _step_rewards(given: Any, row: int) -> list[list[Any]] | None:
    if given is None:
        return None
    try:
        pairs = [[operator.index(stop), float(reward)] for stop, reward in given]
    except (TypeError, ValueError, OverflowError):
        pairs = [[-1, math.nan]]
    if not all(stop >= 0 and math.isfinite(reward) for stop, reward in pairs):
        raise ValueError(
            f"log_extra('{STEP_REWARDS}') got {given!r:.80} for row {row}; expected [characters, reward] pairs"
        )
    return pairs


def _ids(batch: Batch) -> list[list[int]]:
    return [list(row) for row in batch.samples.completion_lists()]


def _arguments(batch: Batch) -> dict[str, Any]:
    return {
        **{name: list(column) for name, column in batch.samples.columns.items()},
        "prompts": list(batch.samples.prompts),
        "completions": list(batch.samples.extras.get(SEEN, batch.samples.completions)),
        **{name: list(batch.samples.extras[name]) for name in (REWARD, EARNED) if name in batch.samples.extras},
        "completion_truncated": batch.samples.truncated_B.tolist(),
        # A reward that sees only the answer must not read the reasoning off the tokens.
        **({} if SEEN in batch.samples.extras else {"completion_ids": _ids(batch)}),
    }
