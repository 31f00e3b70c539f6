"""A run as a sequence of events, each at the earliest time that its predecessors allow.

Jobs are taken in a fixed order (by step, then part, then sampler), so no job is ever later because another came
earlier: a larger staleness cannot make a run slower.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from benchmarks.simulator.plant import Plant


@dataclass(frozen=True)
class Trace:
    """Seconds are sums over a kind's workers. `staleness` counts samples by how many versions behind they were."""

    plant: Plant
    ends: tuple[float, ...]
    """Time at which each step's weights reached the samplers."""
    sampling_s: float
    judging_s: float
    training_s: float
    staleness: Mapping[int, int]

    @property
    def elapsed_s(self) -> float:
        return self.ends[-1]

    @property
    def step_s(self) -> float:
        return self.elapsed_s / len(self.ends)

    @property
    def sampler_idle(self) -> float:
        return _idle(self.sampling_s, self.plant.samplers, self.elapsed_s)

    @property
    def judge_idle(self) -> float:
        return _idle(self.judging_s, self.plant.judges, self.elapsed_s)

    @property
    def trainer_idle(self) -> float:
        return _idle(self.training_s, 1, self.elapsed_s)

    @property
    def device_idle(self) -> float:
        """The same devices sample and train, one after the other."""
        return max(0.0, self.sampler_idle + self.trainer_idle - 1.0)


def _idle(busy_s: float, workers: int, elapsed_s: float) -> float:
    return 0.0 if not workers or not elapsed_s else min(1.0, max(0.0, 1.0 - busy_s / (workers * elapsed_s)))


def simulate(plant: Plant, steps: int, *, staleness: int = 0, drain_every: int = 0, seed: int = 0) -> Trace:
    """Sampling of step s begins once the version of step s − `staleness` is there; it takes the newest that is.

    `drain_every`: at each so many steps a checkpoint is taken of an empty pipeline, and sampling waits for the newest
    version. The trainer is busy while it sends.
    """
    free = [0.0] * plant.samplers
    judges = [0.0] * plant.judges
    arrived = [0.0]  # time at which each version reached the samplers
    trainer = sampling_s = judging_s = 0.0
    drawn: Counter[int] = Counter()
    for step in range(steps):
        needed = step if drain_every and step % drain_every == 0 else max(0, step - staleness)
        batches = []
        for sampler, parts in enumerate(plant.shares()):
            now = max(free[sampler], arrived[needed])
            version = max(v for v in range(needed, step + 1) if arrived[v] <= now)
            for part, rows in enumerate(parts):
                if rows:
                    took = plant.sampling.seconds(rows, seed, "sampling", step, sampler, part)
                    now, sampling_s = now + took, sampling_s + took
                    drawn[step - version] += rows
                    batches.append((part, sampler, rows, now))
            free[sampler] = now
        rewarded, took = _judged(plant, judges, sorted(batches), (seed, "judging", step))
        judging_s += took
        trainer = max(trainer, rewarded) + plant.update_s + plant.sync_s
        arrived.append(trainer)
    training_s = steps * (plant.update_s + plant.sync_s)
    return Trace(plant, tuple(arrived[1:]), sampling_s, judging_s, training_s, dict(sorted(drawn.items())))


def _judged(
    plant: Plant, judges: list[float], batches: list[tuple[int, int, int, float]], key: tuple[object, ...]
) -> tuple[float, float]:
    """When the last of a step's samples has its reward, and how long judges worked. `judges`: when each is free."""
    if not plant.judges:
        return max(done for *_, done in batches), 0.0
    heapify(judges)
    last = busy = 0.0
    for part, sampler, rows, done in batches:
        for row in range(rows):
            took = plant.judging.seconds(1, *key, part, sampler, row)
            end = max(done, judges[0]) + took
            heapreplace(judges, end)
            last, busy = max(last, end), busy + took
    return last, busy


def synchronous(plant: Plant, steps: int, *, seed: int = 0) -> float:
    """Seconds of a fully synchronous run: the sum of its phases, for comparison."""
    clock = 0.0
    for step in range(steps):
        judges = [clock] * plant.judges
        batches = []
        for sampler, parts in enumerate(plant.shares()):
            now = clock
            for part, rows in enumerate(parts):
                if rows:
                    now += plant.sampling.seconds(rows, seed, "sampling", step, sampler, part)
                    batches.append((part, sampler, rows, now))
        rewarded, _ = _judged(plant, judges, sorted(batches), (seed, "judging", step))
        clock = rewarded + plant.update_s + plant.sync_s
    return clock
