"""Several rewards in one: their weighted sum, the smallest of them, each normalised in its group first; or a check and
a dense reward, one after the other or one where the other ties."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal

import torch

from vigneron.core.advantages import group_relative
from vigneron.core.shaping import annealed, tie_break
from vigneron.rewards.apply import StepReward
from vigneron.rewards.environment import environment_reward
from vigneron.rewards.user_reward import checked_rewards, is_async, named_errors, started
from vigneron.rollout.conversations import EARNED, TURN_REWARDS

RewardFunction = Callable[..., Any]
Combine = Literal["sum", "min", "normalised", "annealed", "tie_break"]


class CombinedReward:
    """A `StepReward`: the parts are computed as samples arrive, and combined when the step is there.

    A sample that a part could not score has no reward, unless that part is not used for it. Each part is logged as
    `reward/NAME`; two parts of one kind are numbered. With `annealed` the prompts that have been hit are remembered,
    and kept in checkpoints.
    """

    __name__ = "combined"

    def __init__(
        self,
        parts: Sequence[tuple[str, RewardFunction]],
        weights: Sequence[float],
        combine: Combine,
        *,
        hit: float = 1.0,
    ) -> None:
        kinds = [kind for kind, _ in parts]
        names = [kind if kinds.count(kind) == 1 else f"{kind}_{n}" for n, kind in enumerate(kinds, start=1)]
        self._parts = list(zip(names, (function for _, function in parts), strict=True))
        self._weights, self._combine, self._hit = list(weights), combine, hit
        self._hits: set[str] = set()
        """Keys of the prompts that have been hit."""
        self._measuring = False

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """With TRL's signature: completions of the same prompt are a group."""
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(json.dumps(prompt, sort_keys=True), len(numbers)) for prompt in prompts]
        columns = {"log_extra": ignore, "log_metric": ignore} | columns
        logs = {name: columns.pop(name) for name in ("log_extra", "log_metric")}
        arguments = {"prompts": prompts, "completions": completions, **columns}
        return self.finish(self.begin(**arguments)(), groups, **arguments, **logs)

    @property
    def functions(self) -> list[RewardFunction]:
        return [function for _, function in self._parts]

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within it, completions are evaluated, not trained on: a check and a dense reward give the check, and nothing
        is remembered."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    @property
    def overlaps(self) -> bool:
        return any(
            function.overlaps if isinstance(function, StepReward) else is_async(function) for _, function in self._parts
        )

    def begin(self, **arguments: Any) -> Callable[[], list[tuple[Any, ...]]]:
        begun = [_begun(_shown(name, function), function, arguments) for name, function in self._parts]
        return lambda: list(zip(*(wait() for wait in begun), strict=True))

    def finish(self, begun: list[Any], groups: list[int], **arguments: Any) -> list[float | None]:
        columns = [
            _finished(_shown(name, function), function, column, groups, arguments)
            for (name, function), column in zip(self._parts, zip(*begun, strict=True), strict=True)
        ]
        missing = float("nan")
        raw_BK = torch.tensor([[missing if x is None else x for x in row] for row in columns], dtype=torch.float64).T
        for (name, _), column_B in zip(self._parts, raw_BK.T, strict=True):
            arguments["log_extra"](f"reward_{name}", column_B.tolist())
            if not column_B.isnan().all():
                arguments["log_metric"](name, float(column_B.nanmean()))
        if self._combine == "sum" and (of_environment := self._environment_weight()):
            by_turn = [[of_environment * reward for reward in turns] for turns in arguments[EARNED]]
            arguments["log_extra"](TURN_REWARDS, by_turn)
        combined_B = self._combined(raw_BK, torch.tensor(groups), arguments["prompts"], arguments["log_metric"])
        return [None if value != value else value for value in combined_B.tolist()]

    def _environment_weight(self) -> float:
        """The weight of what the environment gives for turns: in a sum, that part of R falls where turns end."""
        parts = zip(self._parts, self._weights, strict=True)
        return sum(weight for (_, function), weight in parts if function is environment_reward)

    def _combined(
        self, raw_BK: torch.Tensor, group_B: torch.Tensor, prompts: Sequence[Any], log: Callable[[str, float], None]
    ) -> torch.Tensor:
        if self._combine in ("annealed", "tie_break") and self._measuring:
            return raw_BK[:, 0]
        if self._combine == "annealed":
            check_B, dense_B = raw_BK.T
            keys = [_key(prompt) for prompt in prompts]
            self._hits.update(key for key, value in zip(keys, check_B.tolist(), strict=True) if value >= self._hit)
            was_hit_B = torch.tensor([key in self._hits for key in keys])
            log("annealed", float(was_hit_B.double().mean()))
            return annealed(check_B, dense_B, was_hit_B)
        if self._combine == "tie_break":
            return tie_break(raw_BK[:, 0], raw_BK[:, 1], group_B)
        return combined(raw_BK, group_B, torch.tensor(self._weights).double(), self._combine)

    def close(self) -> None: ...

    def scalars(self) -> dict[str, Any]:
        return {"hits": sorted(self._hits)} if self._combine == "annealed" else {}

    def load(self, scalars: dict[str, Any]) -> None:
        self._hits = set(scalars.get("hits", ()))


def _shown(name: str, function: RewardFunction) -> str:
    """A part's name in errors: of a user's function its own."""
    own = getattr(function, "__name__", name) if name.startswith("python") else name
    return f"reward '{own}'"


def _begun(what: str, function: RewardFunction, arguments: dict[str, Any]) -> Callable[[], list[Any]]:
    """Starts a part. The returned function waits for its rewards, or for what its `finish` is to be given."""
    if isinstance(function, StepReward):
        wait = named_errors(what, lambda: function.begin(**arguments))
        return lambda: list(named_errors(what, wait))
    result = named_errors(what, lambda: started(function(**arguments, log_extra=ignore, log_metric=ignore)))

    def rewards() -> list[float | None]:
        values = named_errors(what, result.result) if isinstance(result, Future) else result
        return checked_rewards(what, values, len(arguments["completions"]))

    return rewards


def _finished(
    what: str, function: RewardFunction, begun: Sequence[Any], groups: list[int], arguments: dict[str, Any]
) -> Sequence[float | None]:
    """A part's rewards over the whole step, from what it began with."""
    if not isinstance(function, StepReward):
        return begun
    unlogged = arguments | {"log_extra": ignore, "log_metric": ignore}
    values = named_errors(what, lambda: function.finish(list(begun), groups, **unlogged))
    return checked_rewards(what, values, len(begun))


def _key(prompt: Any) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16]


def ignore(name: str, value: Any) -> None:
    """In place of `log_extra` and `log_metric`: a part's own logs are not kept."""


def combined(
    rewards_BK: torch.Tensor, group_B: torch.Tensor, weights_K: torch.Tensor, combine: Combine
) -> torch.Tensor:
    """One reward from K; NaN where one of them is missing: such a sample is in no mean and no std. Groups of one
    (evaluation) are not normalised."""
    if combine == "normalised" and len(group_B.unique()) < len(group_B):
        missing_B1 = rewards_BK.isnan().any(1, keepdim=True)
        present_BK = rewards_BK.masked_fill(missing_B1, torch.nan)
        relative = [group_relative(column_B, group_B, scale="std") for column_B in present_BK.T]
        rewards_BK = torch.stack(relative, 1).masked_fill(missing_B1, torch.nan)
    weighted_BK = rewards_BK * weights_K
    return weighted_BK.min(1).values if combine == "min" else weighted_BK.sum(1)
