"""The hardware floor: the time of a step's arithmetic and memory traffic alone.

python -m benchmarks.floor --device cuda --dtype bfloat16 --out FILE     measures the machine's rates

Each phase takes the longer of the two, at the rates measured here by a large copy and a large matrix product:

    sampling    a prompt once for its group; then each token reads all weights and every row's keys and values
    reference   one forward pass over prompts (once a group) and completions; the head on completion tokens only
    update      three times that (forward, and twice in the backward pass), and AdamW's reads and writes; under LoRA
                twice that, because frozen weights have no gradient
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.work import Work


def adamw_bytes(work: Work) -> int:
    """Per trained parameter: weight, gradient and two moments read, weight and two moments written."""
    weight = 2 if work.weights == "bfloat16" else 4
    moment = 1 if work.optimizer == "adamw_8bit" else 4
    return 3 * weight + 4 * moment


@dataclass(frozen=True)
class Ceilings:
    """Peak rates, measured on this machine."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that determine its cost."""

    layers: int
    layer_weights: int
    head_weights: int
    attention_width: int
    """Heads times their size."""
    cache_width: int
    """Numbers in the keys and values of one token in one layer."""
    adapter_width: int = 0
    """Inputs and outputs of a layer's matrices together: an adapter's parameters per rank."""
    embedding_weights: int = 0
    """Of an embedding that is not the head's."""

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """From a transformers config of Llama's or GPT-2's kind."""
        hidden, heads = config.hidden_size, config.num_attention_heads
        size = getattr(config, "head_dim", None) or hidden // heads
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        gated = hasattr(config, "intermediate_size")
        inner = config.intermediate_size if gated else (getattr(config, "n_inner", None) or 4 * hidden)
        attention = 2 * hidden * heads * size + 2 * hidden * key_heads * size
        perceptron = (3 if gated else 2) * hidden * inner
        return cls(
            config.num_hidden_layers,
            attention + perceptron,
            hidden * config.vocab_size,
            heads * size,
            2 * key_heads * size,
            (3 if gated else 2) * (hidden + inner) + 4 * hidden + 2 * heads * size + 2 * key_heads * size,
            0 if getattr(config, "tie_word_embeddings", True) else hidden * config.vocab_size,
        )

    @property
    def weights(self) -> int:
        return self.layers * self.layer_weights + self.head_weights

    def forward_flops(self, tokens: float, context: float, head_tokens: float) -> float:
        """One multiplication and one addition per weight; attention over `context` earlier tokens on average."""
        body = 2 * self.layers * self.layer_weights * tokens
        attention = 4 * self.layers * self.attention_width * context * tokens
        return body + attention + 2 * self.head_weights * head_tokens


def floor_seconds(work: Work, shape: Shape, ceilings: Ceilings, prompt_tokens: float) -> dict[str, float]:
    """Seconds of each phase, by name."""
    number = 2 if work.dtype == "bfloat16" else 4
    weight_bytes = number * shape.weights
    if work.weights == "4bit":
        weight_bytes -= int((number - 0.5) * shape.layers * shape.layer_weights)
    passes, trained = 3, shape.weights + shape.embedding_weights
    if work.lora_rank is not None:
        passes, trained = 2, work.lora_rank * shape.layers * shape.adapter_width
    prompts, samples, length = work.prompts, work.samples, work.new_tokens

    def longer(flops: float, traffic: float) -> float:
        return max(flops / ceilings.flops_per_s, traffic / ceilings.bytes_per_s)

    prefill = longer(shape.forward_flops(prompts * prompt_tokens, prompt_tokens / 2, prompts), weight_bytes)
    cache_bytes = number * shape.layers * shape.cache_width * samples
    decode = sum(
        longer(
            shape.forward_flops(samples, prompt_tokens + t, samples),
            weight_bytes + cache_bytes * (prompt_tokens + t),
        )
        for t in range(1, length)
    )
    forward = shape.forward_flops(prompts * prompt_tokens, prompt_tokens / 2, 0) + shape.forward_flops(
        samples * length, prompt_tokens + length / 2, samples * length
    )
    return {
        "sampling": prefill + decode,
        "reference+reward": longer(forward, weight_bytes),
        "update": longer(passes * forward, passes * weight_bytes) + adamw_bytes(work) * trained / ceilings.bytes_per_s,
    }


def measure_ceilings(device: str, dtype: str) -> Ceilings:
    """Bytes per second of a copy and operations per second of a matrix product, each the best of several runs."""
    size, side = (2**30, 8192) if device == "cuda" else (2**27, 1536)
    ceilings = Ceilings(2 * size / _copy_seconds(size, device), 2 * side**3 / _product_seconds(side, device, dtype))
    if device == "cuda":
        torch.cuda.empty_cache()
    return ceilings


def _copy_seconds(size: int, device: str) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _best_seconds(lambda: target.copy_(source), device)


def _product_seconds(side: int, device: str, dtype: str) -> float:
    left, right = (torch.randn(side, side, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    return _best_seconds(lambda: left @ right, device)


def _best_seconds(action: Callable[[], Any], device: str, tries: int = 10) -> float:
    def timed() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        action()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return min(timed() for _ in range(tries))


if __name__ == "__main__":
    from benchmarks.measure import machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--dtype", required=True, choices=("bfloat16", "float32"))
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    rates = asdict(measure_ceilings(given.device, given.dtype))
    given.out.write_text(json.dumps({"machine": machine(given.device), **rates}))
