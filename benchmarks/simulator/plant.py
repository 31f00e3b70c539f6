"""The workers of a run and their service times."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Service:
    """Seconds of one job: `fixed_s`, and `per_unit_s` for each sample in it. `jitter` is the standard deviation of a
    log-normal factor's logarithm; the factor's mean is 1."""

    fixed_s: float = 0.0
    per_unit_s: float = 0.0
    jitter: float = 0.0

    def seconds(self, units: float, *key: object) -> float:
        """Equal keys give equal seconds: a job's time does not depend on when it runs."""
        mean = self.fixed_s + self.per_unit_s * units
        if not self.jitter:
            return mean
        drawn = random.Random("/".join(map(str, key))).gauss(-(self.jitter**2) / 2, self.jitter)
        return mean * 2.718281828459045**drawn


@dataclass(frozen=True)
class Plant:
    """A step is `rows` samples, dealt evenly to the samplers. Each works its share off in `parts`; a part's samples go
    to the judges when it is done, `judges` of them at once. Then the trainer updates and sends the new weights."""

    rows: int
    samplers: int = 1
    sampling: Service = Service()
    parts: int = 1
    judges: int = 0
    """Number of samples judged at the same time; 0: rewards take no time."""
    judging: Service = Service()
    update_s: float = 0.0
    sync_s: float = 0.0

    def shares(self) -> list[list[int]]:
        """Rows of each part, by sampler."""
        return [_dealt(rows, self.parts) for rows in _dealt(self.rows, self.samplers)]

    def shortest_step_s(self) -> float:
        """A lower bound of the mean step time: the work of the busiest worker, without jitter."""
        sampling = max(sum(self.sampling.seconds(rows) for rows in parts if rows) for parts in self.shares())
        judging = self.rows * self.judging.seconds(1) / self.judges if self.judges else 0.0
        return max(sampling, judging, self.update_s + self.sync_s)


def _dealt(count: int, among: int) -> list[int]:
    return [count // among + (i < count % among) for i in range(among)]
