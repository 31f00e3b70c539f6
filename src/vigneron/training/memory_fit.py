"""Which changes to a run's config make it fit into a GPU."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, groupby, product
from math import inf
from typing import Any, NamedTuple

from vigneron.config import Config
from vigneron.config.kl import needs_reference_head
from vigneron.config.parts import LoraConfig
from vigneron.config.rewards import asks_reference
from vigneron.errors import UserError
from vigneron.policy.device import resolve_device
from vigneron.recipe import check_config
from vigneron.training.host_memory import free_host_memory
from vigneron.training.memory_parts import Plan
from vigneron.training.memory_plan import RunMemory, gpu_gigabytes
from vigneron.values import GB, memory_text

GPU_SIZES = (8, 16, 24, 48, 80)
"""Of common GPUs, in GB, as they are sold."""
USABLE = 0.92
"""Of a GPU's size, what a suggestion may take: one that is sold as 24 GB has 23.6, or 22.1 with error correction, and
torch reserves a little more than it uses."""
SMALLEST_MICROBATCH = 256
FAIR_TOKENS = 1024
"""Of a pass: with fewer, a GPU is mostly idle."""


@dataclass(frozen=True)
class Change:
    """A key with its new value, as on the command line, and what it costs the user."""

    key: str
    text: str
    value: Any
    slower: int = 0
    """How much slower a step is, roughly."""
    trains: int = 0
    """How much it changes what is learned; 0: nothing but rounding."""

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


CHANGES = (
    Change("model.graphs", "false", False, slower=1),
    Change("model.activation_checkpointing", "true", True, slower=2),
    Change("model.offload_reference", "true", True, slower=2),
    Change("optimizer.offload", "true", True, slower=3),
    Change("optimizer.kind", "adamw_8bit", "adamw_8bit", trains=1),
    Change("method.kl.estimator", "k3", "k3", trains=1),
    Change("model.weights", "bfloat16", "bfloat16", trains=2),
    Change("model.weights", "4bit", "4bit", slower=2, trains=3),
    Change("model.lora", "{}", LoraConfig(), trains=8),
)
"""Changes that leave the training as it is are preferred, whatever time they take; then those that change it least."""
SMALL_RATE = 1e-6
"""Below this learning rate, the noise of stochastic rounding is larger than the steps: bfloat16 weights change more."""
LARGE_NOISE = 3


class Fit(NamedTuple):
    """Changes, and the plan with them."""

    changes: tuple[Change, ...]
    plan: Plan


class Fitting:
    """The search over sets of changes, the cheapest first. Plans are kept for the next size. `host_bytes`: what may be
    offloaded."""

    def __init__(self, memory: RunMemory, config: Config, host_bytes: float = inf) -> None:
        self.memory, self.config, self.host_bytes = memory, config, host_bytes
        self._plans: dict[tuple[tuple[Change, ...], float], Plan] = {}
        self._fixed: dict[tuple[Change, ...], int] = {}

    def fit(self, gigabytes: float) -> Fit | None:
        """The changes of least cost with which the run fits with a margin; None if none are enough. Among those that
        change the training as little, the first that leaves room for passes of some size."""
        for _, sets in groupby(self._sets, lambda changes: self._cost(changes)[0]):
            fits = self._fits(sets, USABLE * gigabytes)
            first = next(fits, None)
            if first is not None:
                return next((fit for fit in chain([first], fits) if self.has_room(fit.plan)), first)
        return None

    def roomier(self, gigabytes: float, found: Fit) -> Fit | None:
        """The changes of least cost with which passes have some size, however they change the training; whether all
        weights are trained is as in `found`."""
        sets = (some for some in self._sets if _adds_lora(some) == _adds_lora(found.changes))
        return next((fit for fit in self._fits(sets, USABLE * gigabytes) if self.has_room(fit.plan)), None)

    def _fits(self, sets: Iterable[tuple[Change, ...]], usable: float) -> Iterator[Fit]:
        for changes in sets:
            if self._fixed_bytes(changes) <= usable * GB:
                plan = self._plan(changes, usable)
                held = plan.host_bytes <= self.host_bytes
                if held and plan.least_bytes <= usable * GB and self._valid(changes):
                    yield Fit(changes, plan)

    def has_room(self, plan: Plan) -> bool:
        """Whether passes are large enough to keep a GPU busy."""
        return self.config.microbatch_tokens != "auto" or plan.microbatch_tokens >= FAIR_TOKENS

    @cached_property
    def _sets(self) -> Sequence[tuple[Change, ...]]:
        offered = [change for change in (*CHANGES, *self._microbatches()) if self._changes_something(change)]
        values = [[*some, None] for _, some in groupby(offered, lambda change: change.key)]
        sets = [tuple(change for change in some if change is not None) for some in product(*values)]
        return sorted(filter(self._sensible, sets), key=self._cost)

    def _cost(self, changes: Sequence[Change]) -> tuple[int, int, int]:
        rounds = self.config.optimizer.actor_lr < SMALL_RATE and any(change.value == "bfloat16" for change in changes)
        trains = sum(change.trains for change in changes) + (LARGE_NOISE if rounds else 0)
        return trains, sum(change.slower for change in changes), len(changes)

    def _microbatches(self) -> Iterator[Change]:
        """None for `auto`, which is what fits."""
        if self.config.microbatch_tokens == "auto":
            return
        tokens, slower = self.config.microbatch_tokens // 2, 1
        while tokens >= SMALLEST_MICROBATCH:
            yield Change("microbatch_tokens", str(tokens), tokens, slower)
            tokens, slower = tokens // 2, slower + 1

    def _changes_something(self, change: Change) -> bool:
        if change.key == "method.kl.estimator" and not needs_reference_head(self.config.method):
            return False
        if change.key == "model.lora" and self.config.method.trains == "scorer":
            return False
        now = reduce(getattr, change.key.split("."), self.config)
        return now != change.value and not (change.key == "model.lora" and now is not None)

    def _sensible(self, changes: tuple[Change, ...]) -> bool:
        adapted = self.config.model.lora is not None or _adds_lora(changes)
        copied = (self.config.method.uses_reference or asks_reference(self.config.reward)) and not adapted
        if not copied and any(change.key == "model.offload_reference" for change in changes):
            return False
        weights = next((change.value for change in changes if change.key == "model.weights"), None)
        if weights == "bfloat16" and adapted:  # as it is stored already
            return not self.memory.stored.bfloat16
        return weights != "4bit" or (adapted and not self.memory.stored.packed)

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


def _adds_lora(changes: Sequence[Change]) -> bool:
    return any(change.key == "model.lora" for change in changes)


def changed(config: Config, changes: Sequence[Change]) -> Config:
    for change in changes:
        config = _with(config, change.key.split("."), change.value)
    return config


def _with(section: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    return section.model_copy(update={first: _with(getattr(section, first), rest, value) if rest else value})


def check_host(config: Config) -> None:
    """Raise if this machine's memory cannot hold what is offloaded to it. Each process has its own."""
    if resolve_device(config.model.device).type == "cuda" and (memory := RunMemory.of(config)) is not None:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        check_host_limit(config, memory, free_host_memory() / processes)


def check_host_limit(config: Config, memory: RunMemory, free: float) -> None:
    if (needed := memory.host_bytes(config)) <= free:
        return
    given = {"optimizer.offload": config.optimizer.offload, "model.offload_reference": config.model.offload_reference}
    keys = " and ".join(key for key, offloads in given.items() if offloads)
    raise UserError(
        f"{keys}: {memory_text(needed)} of pinned host memory are needed in each process, and {memory_text(free)} are "
        "free: leave out what is too large, set optimizer.kind=adamw_8bit (its moments are a quarter as large), or "
        "choose a machine with more memory"
    )


def more_host_bytes(config: Config, key: str) -> int:
    """Further host memory with this option of offloading turned on."""
    memory = RunMemory.of(config)
    if memory is None:
        return 0
    change = Change(key, "true", True)
    return memory.host_bytes(changed(config, [change])) - memory.host_bytes(config)


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
    fit = Fitting(memory, config, free_host_memory()).fit(gigabytes)
    advice = "choose a smaller model" if fit is None else f"set {' '.join(map(str, fit.changes))}"
    largest = sorted((part for part in fixed.parts if part.fixed), key=lambda part: -part.bytes)[:3]
    parts = ", ".join(f"{part.name} {part.bytes / GB:.1f}" for part in largest)
    raise UserError(
        f"{what} has {gigabytes:.1f} GB, but the run needs at least {fixed.fixed_bytes / GB:.1f} ({parts}): {advice}; "
        "`vigneron validate` shows every part"
    )
