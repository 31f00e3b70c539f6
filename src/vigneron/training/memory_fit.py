"""Which changes to a run's config make it fit into a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from vigneron.config import Config
from vigneron.config.parts import LoraConfig
from vigneron.errors import UserError
from vigneron.policy.load import resolve_device
from vigneron.recipe import check_config
from vigneron.training.memory_parts import GB, Plan
from vigneron.training.memory_plan import RunMemory, gpu_gigabytes

GPU_SIZES = (8, 16, 24, 48, 80)
"""Of common GPUs, in GB."""
SMALLEST_MICROBATCH = 256


@dataclass(frozen=True)
class Change:
    """A key with its new value, as on the command line, and how much it costs the user in speed or in the result."""

    key: str
    text: str
    value: Any
    cost: int

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


CHANGES = (
    Change("model.weights", "bfloat16", "bfloat16", 1),
    Change("optimizer.kind", "adamw_8bit", "adamw_8bit", 1),
    Change("model.graphs", "false", False, 1),
    Change("optimizer.offload", "true", True, 3),
    Change("model.activation_checkpointing", "true", True, 2),
    Change("model.lora", "{}", LoraConfig(), 5),
    Change("model.weights", "4bit", "4bit", 3),
)
MICROBATCH_COST = 1


class Fit(NamedTuple):
    """Changes, and the plan with them."""

    changes: tuple[Change, ...]
    plan: Plan


class Fitting:
    """The search over sets of changes, the cheapest first. Plans are kept for the next size."""

    def __init__(self, memory: RunMemory, config: Config) -> None:
        self.memory, self.config = memory, config
        self._plans: dict[tuple[tuple[Change, ...], float], Plan] = {}
        self._fixed: dict[tuple[Change, ...], int] = {}

    def fit(self, gigabytes: float) -> Fit | None:
        """The cheapest changes with which the run fits; None if none are enough."""
        for changes in self._sets:
            if self._fixed_bytes(changes) > gigabytes * GB:
                continue
            plan = self._plan(changes, gigabytes)
            if plan.least_bytes <= gigabytes * GB and self._valid(changes):
                return Fit(changes, plan)
        return None

    @property
    def _sets(self) -> Sequence[tuple[Change, ...]]:
        offered = [change for change in (*CHANGES, *self._microbatches()) if self._changes_something(change)]
        sets = [some for count in range(len(offered) + 1) for some in combinations(offered, count)]
        sets = [some for some in sets if len({change.key for change in some}) == len(some) and self._sensible(some)]
        return sorted(sets, key=lambda some: (sum(change.cost for change in some), len(some)))

    def _microbatches(self) -> Iterator[Change]:
        """None for `auto`, which is what fits."""
        if self.config.microbatch_tokens == "auto":
            return
        tokens, cost = self.config.microbatch_tokens // 2, MICROBATCH_COST
        while tokens >= SMALLEST_MICROBATCH:
            yield Change("microbatch_tokens", str(tokens), tokens, cost)
            tokens, cost = tokens // 2, cost + 1

    def _changes_something(self, change: Change) -> bool:
        section, _, key = change.key.rpartition(".")
        now = getattr(getattr(self.config, section) if section else self.config, key)
        return now != change.value and not (change.key == "model.lora" and now is not None)

    def _sensible(self, changes: tuple[Change, ...]) -> bool:
        adapted = self.config.model.lora is not None or any(change.key == "model.lora" for change in changes)
        weights = next((change.value for change in changes if change.key == "model.weights"), None)
        return weights is None or (weights == "4bit") == adapted

    def _fixed_bytes(self, changes: tuple[Change, ...]) -> int:
        if changes not in self._fixed:
            self._fixed[changes] = self.memory.fixed(changed(self.config, changes)).fixed_bytes
        return self._fixed[changes]

    def _plan(self, changes: tuple[Change, ...], gigabytes: float) -> Plan:
        key = changes, gigabytes
        if key not in self._plans:
            self._plans[key] = self.memory.plan(changed(self.config, changes), gigabytes)
        return self._plans[key]

    def _valid(self, changes: tuple[Change, ...]) -> bool:
        """Whether the config's checks accept the changes."""
        try:
            check_config(changed(self.config, changes).model_dump(mode="json", exclude_unset=True), "a change")
        except UserError:
            return False
        return True


def changed(config: Config, changes: Sequence[Change]) -> Config:
    for change in changes:
        section, _, key = change.key.rpartition(".")
        update: dict[str, Any] = {key: change.value}
        if section:
            update = {section: getattr(config, section).model_copy(update=update)}
        config = config.model_copy(update=update)
    return config


def check_gpu(config: Config) -> None:
    """Raise if the GPU, or `model.memory_gb`, is too small for the weights, gradients and moments alone."""
    device = resolve_device(config.model.device)
    if device.type != "cuda":
        return
    limit = gpu_gigabytes(config)
    limited = config.model.memory_gb is not None and limit == config.model.memory_gb
    check_limit(config, limit, "model.memory_gb" if limited else f"the GPU '{device}'")


def check_limit(config: Config, gigabytes: float, what: str) -> None:
    memory = RunMemory.of(config)
    if memory is None or (fixed := memory.fixed(config)).fixed_bytes <= gigabytes * GB:
        return
    fit = Fitting(memory, config).fit(gigabytes)
    advice = "choose a smaller model" if fit is None else f"set {' '.join(map(str, fit.changes))}"
    largest = sorted((part for part in fixed.parts if part.fixed), key=lambda part: -part.bytes)[:3]
    parts = ", ".join(f"{part.name} {part.bytes / GB:.1f}" for part in largest)
    raise UserError(
        f"{what} has {gigabytes:.1f} GB, but the run needs at least {fixed.fixed_bytes / GB:.1f} ({parts}): {advice}; "
        "`vigneron validate` shows every part"
    )
