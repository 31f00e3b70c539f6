"""The works of the comparisons: what every contestant does."""

from dataclasses import dataclass, replace
from typing import Literal

Model = Literal["smollm2-135m", "gpt2-small-shape"]
Contestant = Literal["ours", "trl-default", "trl-tuned", "trl-compiled", "released-shape", "released-shape-bf16"]


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
    """The dtype of matrix products; the trained weights are float32 for every contestant."""
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

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        return self.samples * self.new_tokens

    @property
    def method(self) -> Literal["grpo", "actor_critic"]:
        return "actor_critic" if self.prompt_tokens is None else "grpo"


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


WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        _gpu("gpu-64x8x64", 64, 64),
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
        # The two below are smoke tests of a minute or two, not comparisons.
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
