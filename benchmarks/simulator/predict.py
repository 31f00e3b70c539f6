"""Predictions for other models and machines: memory of a rank, seconds of a step, waiting times."""

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.simulator import costs
from benchmarks.simulator.costs import BF16, FP32, Decoder, RankMemory, Work
from benchmarks.simulator.measured import H200
from benchmarks.simulator.plant import Plant, Service
from benchmarks.simulator.simulate import Trace, simulate
from benchmarks.simulator.timing import reference_s, sampling_s, update_s

# The shapes of Qwen2.5-7B and Llama-3-70B.
SEVEN = Decoder("7B", 28, 6_525_288_448, 3584, 152_064, 4, 128)
SEVENTY = Decoder("70B", 80, 68_451_041_280, 8192, 128_256, 8, 128)

GPU_BYTES = 141e9
GPUS_OF_A_NODE = 8
# Assumed, not measured here.
NVLINK, NETWORK, FILES = 450e9, 50e9, 5e9
"""Bytes a second: within a node and between nodes by GPU, and of a file system that all share."""
LARGE = replace(H200, update=0.40, forward=0.40)
"""Large matrices use more of a GPU than those of a 135M model."""
JUDGES, JUDGE_S = 256, 2.0
MICROBATCH = 16_384
STEPS = 40


@dataclass(frozen=True)
class Setting:
    """A number of GPUs with 64 samples each. `vllm`: a quarter of them serve, each instance on `per_server` GPUs."""

    decoder: Decoder
    gpus: int
    vllm: bool = False
    by_network: bool = False
    """vLLM gets its weights over the network (not implemented) instead of by a file."""

    @property
    def work(self) -> Work:
        return Work(prompts=8 * self.gpus, group=8, prompt_tokens=256, new_tokens=512)

    @property
    def serving(self) -> int:
        """GPUs that only sample."""
        return max(self.gpus // 4, self.per_server) if self.vllm else 0

    @property
    def trainers(self) -> int:
        return self.gpus - self.serving

    @property
    def shard(self) -> int:
        """As few ranks as can hold a 7B model; all ranks for a 70B."""
        return min(self.trainers, GPUS_OF_A_NODE) if self.decoder is SEVEN else self.trainers

    @property
    def per_server(self) -> int:
        return (1 if self.decoder is SEVEN else 4) if self.vllm else 1

    @property
    def samplers(self) -> int:
        return self.serving // self.per_server if self.vllm else self.gpus

    @property
    def rows(self) -> int:
        return self.work.samples // self.samplers


def memory_of(setting: Setting) -> RankMemory:
    length = setting.work.prompt_tokens + setting.work.new_tokens
    return costs.rank_memory(
        setting.decoder,
        setting.shard,
        samples_here=not setting.vllm,
        rows=setting.rows,
        tokens=length,
        microbatch=MICROBATCH,
    )


def sending_s(setting: Setting) -> float:
    """Between the ranks, in one update, nothing of it hidden behind computing. Whole copies reduce gradients of their
    shard over the network; a shard that fits into a node gathers over NVLink."""
    decoder, shard = setting.decoder, setting.shard
    passes = -(-setting.work.once // (MICROBATCH * setting.trainers))
    link = NVLINK if shard <= GPUS_OF_A_NODE else NETWORK
    inside = costs.sharded_step_bytes(decoder, shard, passes) / link
    copies = setting.trainers // shard
    return inside + costs.all_reduce_bytes(decoder.matrices * FP32 // shard, copies) / NETWORK


def sync_s(setting: Setting) -> float:
    """To own samplers: the matrices gathered once more. To vLLM: one file written, and read by every instance; or one
    broadcast, as fast as one GPU's link to the network."""
    if setting.by_network:
        return costs.weight_bytes(setting.decoder) / NETWORK
    if setting.vllm:
        return costs.weight_bytes(setting.decoder) * (1 + setting.samplers) / FILES
    link = NVLINK if setting.shard <= GPUS_OF_A_NODE else NETWORK
    return costs.gather_bytes(setting.decoder.matrices * BF16, setting.shard) / link


def plant_of(setting: Setting) -> Plant:
    """A judge of two seconds, 256 samples at a time. A server of n GPUs is modelled as one GPU n times as fast."""
    decoder, work, n = setting.decoder, setting.work, setting.per_server
    server = replace(LARGE, flops_per_s=n * LARGE.flops_per_s, bytes_per_s=n * LARGE.bytes_per_s)
    drawing = sampling_s(decoder, server, work, setting.rows)
    training = reference_s(decoder, LARGE, work, setting.trainers) + update_s(decoder, LARGE, work, setting.trainers)
    return Plant(
        work.samples,
        setting.samplers,
        Service(0.0, drawing / setting.rows, 0.05),
        4,
        JUDGES,
        Service(JUDGE_S),
        training + sending_s(setting),
        sync_s(setting),
    )


@cache
def trace_of(setting: Setting, staleness: int) -> Trace:
    return simulate(plant_of(setting), STEPS, staleness=staleness, drain_every=20)


SETTINGS = tuple(
    Setting(decoder, gpus, vllm) for decoder in (SEVEN, SEVENTY) for gpus in (8, 64) for vllm in (False, True)
)


def fitting() -> list[Setting]:
    """The settings that fit into memory; with vLLM also with weights sent over the network."""
    fit = [setting for setting in SETTINGS if memory_of(setting).total < GPU_BYTES]
    return [one for s in fit for one in ((s, replace(s, by_network=True)) if s.vllm else (s,))]
