"""Measured points. Some of them determine the rates, with which the others are predicted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulator.costs import FP32, Decoder, Work
from benchmarks.simulator.plant import Plant, Service
from benchmarks.simulator.simulate import simulate
from benchmarks.simulator.timing import Rates, reference_s, sampling_s, update_s

POINTS = Path(__file__).parents[2] / "docs" / "results" / "scale-points.json"

SMOLLM2 = Decoder("SmolLM2-135M", 30, 106_168_320, 576, 49_152, 3, 64, tied=True)
GPT2 = Decoder("GPT-2 Small's shape", 12, 84_934_656, 768, 50_257, 12, 64, tied=True)

# Ceilings from docs/results/performance.md. Shares: the geometric mean of 64x8x64 and 64x8x256. Overheads of
# decoding: from 64x8x64 and 7x8x16. So 64x8x256's sampling, 7x8x16's training and
# all of PGSRM's loop are predictions.
H200 = Rates("H200", 783e12, 4.13e12, update=0.170, forward=0.200, layer_s=57.5e-6, logit_s=2.34e-11)
# From cpu-4x4x16 alone.
TWO_CORES = Rates("two Neoverse-N1 cores", 73.9e9, 60.3e9, update=0.686, forward=0.710, decode=0.266, number_bytes=FP32)


@dataclass(frozen=True)
class Step:
    """Seconds of a step's parts."""

    sampling: float
    reference: float
    update: float

    @property
    def whole(self) -> float:
        return self.sampling + self.reference + self.update


def predicted(decoder: Decoder, rates: Rates, work: Work) -> Step:
    """On one device, one part after the other."""
    return Step(
        sampling_s(decoder, rates, work, work.samples),
        reference_s(decoder, rates, work),
        update_s(decoder, rates, work),
    )


ON_H200 = {
    "gpu-64x8x64": (SMOLLM2, Work(64, 8, 32, 64), Step(0.1666, 0.0642, 0.2289), 0.4555),
    "gpu-64x8x256": (SMOLLM2, Work(64, 8, 32, 256), Step(0.661, 0.2088, 0.724), 1.593),
    "gpu-7x8x16": (SMOLLM2, Work(7, 8, 32, 16), Step(0.03016, 0.00491, 0.01857), 0.05378),
    "pgsrm-50x2": (GPT2, Work(50, 1, 12, 2), Step(0.01078, 0.01095, 0.01945), 0.04178),
}
"""From docs/results/performance.md: the phases, and the whole step."""

ON_TWO_CORES = {
    (6, 384, 1, 4, 16): (28.3e6, 1.005),
    (6, 384, 2, 4, 16): (28.3e6, 1.351),
    (6, 384, 4, 4, 16): (28.3e6, 2.404),
    (6, 384, 8, 4, 16): (28.3e6, 4.414),
    (6, 384, 2, 4, 4): (28.3e6, 0.6175),
    (6, 384, 2, 4, 64): (28.3e6, 4.843),
    (6, 384, 4, 2, 16): (28.3e6, 1.492),
    (6, 384, 1, 8, 16): (28.3e6, 1.364),
    (2, 192, 2, 4, 16): (10.2e6, 0.7927),
    (12, 576, 2, 4, 16): (70.8e6, 3.179),
}
"""Layers, width, prompts, group, tokens: parameters, and seconds of a step from docs/results/performance.md."""


def llama(layers: int, width: int, parameters: float) -> Decoder:
    table = 49_152 * width
    return Decoder(f"{layers}x{width}", layers, int(parameters) - table, width, 49_152, width // 192, 64, tied=True)


def kept_points() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(POINTS.read_text())
    return found


def plant_of(run: dict[str, float]) -> Plant:
    """By the run's own service times. Where there are judges, a step is sampled in four parts. What is neither sampling
    nor waiting for the reward is the trainer's."""
    rest = run["whole_step"] - run["rollout"] - run["reward"]
    judges = int(run["judges"])
    return Plant(16, 1, Service(0.0, run["rollout"] / 16), 4 if judges else 1, judges, Service(run["judge_s"]), rest)


def simulated_here(points: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds of a step, measured and simulated."""
    return {name: (run["whole_step"], simulate(plant_of(run), 8).step_s) for name, run in points["runs"].items()}
