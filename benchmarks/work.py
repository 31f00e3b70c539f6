"""The works of the comparisons: what every contestant does."""

from dataclasses import dataclass, replace
from typing import Any, Literal

Model = Literal[
    "smollm2-135m",
    "gpt2-small-shape",
    "qwen2.5-0.5b-shape",
    "qwen2.5-1.5b-shape",
    "llama-3.1-8b-shape",
    "tiny-shape",
]
Contestant = Literal[
    "ours",
    "trl-default",
    "trl-tuned",
    "trl-compiled",
    "trl-vllm",
    "trl-vllm-sleep",
    "released-shape",
    "released-shape-bf16",
    "ours-sampling",
    "vllm-sampling",
    "ours-vllm",
    "ours-vllm-server",
]
SAMPLING = "sampling"
"""The last part of the names of contestants that sample and do not train."""


@dataclass(frozen=True)
class Work:
    """A repeated training step. Every completion has exactly `new_tokens` tokens."""

    name: str
    model: Model
    prompts: int
    group: int
    new_tokens: int
    device: Literal["cuda", "cpu"]
    dtype: Literal["bfloat16", "float32"]
    """The dtype of matrix products; trained weights are float32 for every contestant, unless `weights` says else."""
    contestants: tuple[Contestant, ...]
    prompt_tokens: int | None = 32
    """None: the prompts of the antonym task."""
    kl_beta: float = 0.04
    learning_rate: float = 1e-5
    temperature: float = 1.0
    peer_microbatch: int = 512
    """TRL's per_device_train_batch_size, at most the step's samples; it determines peak memory."""
    warmups: int = 3
    steps: int = 20
    patience_s: float = 40.0
    """Time limit in seconds, once five steps are measured."""
    peer_pace: tuple[int, int] | None = None
    """Warm-ups and steps of the peers, where theirs are slow. None: as ours."""
    lora_rank: int | None = None
    """Train a LoRA adapter of all linear layers. Every contestant then holds the frozen base in `dtype`."""
    weights: Literal["auto", "bfloat16", "4bit"] = "auto"
    """`model.weights`; ours only."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`optimizer.kind`; ours only."""
    memory_limit: float | None = None
    """`model.memory_gb` of ours, here in GB of 10⁹ bytes, as all memory in the tables."""
    memory_bars: tuple[float, float] | None = None
    """Reserved GB that ours must and should stay within."""

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        return self.samples * self.new_tokens

    @property
    def method(self) -> Literal["grpo", "actor_critic"]:
        return "actor_critic" if self.prompt_tokens is None else "grpo"

    def at_pace_of(self, contestant: str) -> "Work":
        """The work with the contestant's own number of warm-ups and steps."""
        if self.peer_pace is None or contestant.startswith("ours"):
            return self
        warmups, steps = self.peer_pace
        return replace(self, warmups=warmups, steps=min(steps, self.steps))

    @property
    def real_size(self) -> bool:
        """Whether the model is one whose parity check and compilation take long."""
        return self.model in ("qwen2.5-0.5b-shape", "qwen2.5-1.5b-shape", "llama-3.1-8b-shape")

    @property
    def parity_key(self) -> tuple[str, ...]:
        """Works with the same key share one parity check."""
        return (self.model, self.method, self.device, f"lora {self.lora_rank or 'off'}")


def _gpu(name: str, prompts: int, new_tokens: int) -> Work:
    return Work(
        name,
        "smollm2-135m",
        prompts,
        group=8,
        new_tokens=new_tokens,
        device="cuda",
        dtype="bfloat16",
        contestants=("ours", "trl-tuned", "trl-default"),
    )


def _shape(
    model: Model, prompts: int, new_tokens: int, *, name: str, microbatch: int, peer_pace: tuple[int, int]
) -> Work:
    """A model of real size with random weights. `microbatch` rows without checkpointing fit beside vLLM on 139 GiB."""
    return Work(
        name,
        model,
        prompts,
        group=8,
        new_tokens=new_tokens,
        device="cuda",
        dtype="bfloat16",
        contestants=("ours", "trl-vllm", "trl-tuned", "ours-sampling", "vllm-sampling", "trl-vllm-sleep"),
        prompt_tokens=128,
        peer_microbatch=microbatch,
        warmups=2,
        steps=5,
        patience_s=60.0,
        peer_pace=peer_pace,
    )


H200_GB = 149.0


def _memory(
    work: Work, name: str, must: float, aim: float, for_aim: dict[str, Any] | None = None, **changes: Any
) -> tuple[Work, Work]:
    """Ours alone in a limited process: within `must`, and within `aim`, for which more may be changed. The smaller the
    limit, the fewer samples are drawn at a time, and the longer a step: within `aim` there are two."""
    alone = replace(work, contestants=("ours",), warmups=2, steps=3, memory_bars=(must, aim), **changes)
    return (
        replace(alone, name=f"mem-{name}", memory_limit=must if must < H200_GB else None),
        replace(alone, name=f"mem-{name}-aim", memory_limit=aim, warmups=1, steps=2, **(for_aim or {})),
    )


ON_1_5B = _shape("qwen2.5-1.5b-shape", 32, 256, name="gpu-1.5b-32x8x256", microbatch=32, peer_pace=(1, 3))
ON_1_5B = replace(ON_1_5B, contestants=(*ON_1_5B.contestants, "ours-vllm", "ours-vllm-server"))
ON_8B = replace(
    _shape("llama-3.1-8b-shape", 16, 256, name="gpu-8b-lora-16x8x256", microbatch=16, peer_pace=(1, 3)),
    lora_rank=16,
    steps=4,
)
REAL_SIZES: tuple[Work, ...] = (
    ON_1_5B,
    ON_8B,
    replace(
        _shape("qwen2.5-1.5b-shape", 16, 2048, name="gpu-1.5b-16x8x2048", microbatch=4, peer_pace=(1, 2)),
        warmups=1,
        steps=3,
    ),
    _shape("qwen2.5-0.5b-shape", 64, 256, name="gpu-0.5b-64x8x256", microbatch=64, peer_pace=(1, 3)),
    *_memory(ON_8B, "8b-lora-16x8x256", 32, 22),
    *_memory(ON_1_5B, "1.5b-full-8bit-32x8x256", 30, 20, {"weights": "bfloat16"}, optimizer="adamw_8bit"),
    *_memory(ON_8B, "8b-qlora-8x8x256", 16, 10, weights="4bit", prompts=8),
    *_memory(ON_8B, "8b-full-16x8x256", H200_GB, 80, lora_rank=None, weights="bfloat16", optimizer="adamw_8bit"),
)
TINY = Work(
    "smoke-shape",
    "tiny-shape",
    prompts=2,
    group=2,
    new_tokens=3,
    device="cpu",
    dtype="float32",
    contestants=("ours", "trl-tuned", "ours-sampling"),
    prompt_tokens=8,
    peer_microbatch=2,
    warmups=1,
    steps=2,
    peer_pace=(1, 1),
)


WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        replace(
            _gpu("gpu-64x8x64", 64, 64),
            contestants=("ours", "trl-tuned", "trl-default", "ours-sampling", "vllm-sampling"),
        ),
        # 512 rows of 288 tokens without checkpointing do not fit on the GPU, so TRL gets quarters. A step of
        # TRL takes a quarter of a minute: one warm-up, and `--only ours,trl-default` where that one is wanted.
        replace(_gpu("gpu-64x8x256", 64, 256), peer_microbatch=128, warmups=1, contestants=("ours", "trl-tuned")),
        _gpu("gpu-7x8x16", 7, 16),
        Work(
            "pgsrm-50x2",
            "gpt2-small-shape",
            prompts=50,
            group=1,
            new_tokens=2,
            device="cuda",
            dtype="bfloat16",
            contestants=("ours", "released-shape", "released-shape-bf16"),
            prompt_tokens=None,
            kl_beta=5e-5,
        ),
        Work(
            "cpu-4x4x16",
            "smollm2-135m",
            prompts=4,
            group=4,
            new_tokens=16,
            device="cpu",
            dtype="float32",
            contestants=("ours", "trl-tuned", "trl-default"),
            warmups=1,
        ),
        *REAL_SIZES,
        # The works below are smoke tests of a minute or two, not comparisons.
        TINY,
        replace(TINY, name="smoke-lora", lora_rank=4),
        replace(
            TINY,
            name="smoke-gpu",
            new_tokens=16,
            device="cuda",
            dtype="bfloat16",
            contestants=ON_1_5B.contestants,
            peer_microbatch=4,
        ),
        Work(
            "smoke-grpo",
            "smollm2-135m",
            prompts=2,
            group=2,
            new_tokens=3,
            device="cpu",
            dtype="float32",
            contestants=("ours", "trl-tuned", "trl-default"),
            prompt_tokens=8,
            warmups=1,
            steps=2,
        ),
        Work(
            "smoke-pgsrm",
            "gpt2-small-shape",
            prompts=4,
            group=1,
            new_tokens=2,
            device="cpu",
            dtype="float32",
            contestants=("ours", "released-shape"),
            prompt_tokens=None,
            kl_beta=5e-5,
            warmups=1,
            steps=2,
        ),
    )
}
