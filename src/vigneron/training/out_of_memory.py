"""The error when memory runs out: which settings to change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vigneron.config import Config
from vigneron.config.kl import needs_reference_head
from vigneron.config.rewards import asks_reference
from vigneron.errors import UserError
from vigneron.rollout.engine import cuda_memory
from vigneron.training.held_parts import CONTEXT_BYTES
from vigneron.training.host_memory import free_host_memory
from vigneron.training.memory_fit import more_host_bytes
from vigneron.training.method_copies import TRUST_REGION_VECTORS
from vigneron.values import memory_text

REFERENCE, MOMENTS = "model.offload_reference", "optimizer.offload"
CACHE = "sampler's cache"
"""In the message of the error where the cache of sampling does not fit."""
# The part of a GPU that other processes must hold to be named: this one's context is an estimate.
WORTH_NAMING = 0.05


@contextmanager
def explained_memory(config: Config) -> Iterator[None]:
    """Turn an out-of-memory error into a `UserError` that names the settings to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(_advice(config, error)) from error


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    signs = ("can't allocate memory", "not enough memory", "out of memory", "cublas_status_alloc_failed")
    return any(sign in text for sign in signs)


def _is_of_gpu(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "cuda" in text or "cublas" in text


def others_bytes(config: Config) -> int:
    """About what other processes hold of the GPU: what is used, without what this one has. 0 if it is little."""
    sampling = config.scale.sampling
    has_vllm = (
        sampling.kind == "vllm" and sampling.url is None
    )  # its memory is this process's, and torch does not count it
    if has_vllm or config.model.device == "cpu" or not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved() + cuda_memory.held_bytes() + CONTEXT_BYTES
    others = total - free - own
    return others if others > total * WORTH_NAMING else 0


def _advice(config: Config, error: BaseException) -> str:
    """First what leaves the training as it is."""
    model, optimizer, method = config.model, config.optimizer, config.method
    samples = config.prompts_per_step * config.group_size
    settings: list[Any] = [
        *(["model.cache_gb" + (f" (now {model.cache_gb:g})" if model.cache_gb else "")] if CACHE in str(error) else []),
        f"microbatch_tokens (now {config.microbatch_tokens})",
        f"max_new_tokens ({config.max_new_tokens})",
        f"samples per step ({samples}: prompts_per_step × group_size)",
    ]
    copied = model.lora is None and config.scale.shard == 1
    by_gradient = copied and method.steps_by_gradient
    on_gpu = model.device.startswith("cuda") or (model.device == "auto" and torch.cuda.is_available())
    can_be_4bit = model.lora is not None and config.scale.shard == 1 and config.scale.sampling.kind != "vllm"
    has_reference = method.uses_reference or asks_reference(config.reward)

    def offloads(key: str) -> bool:
        return on_gpu and more_host_bytes(config, key) <= free_host_memory()

    switches = {
        "model.activation_checkpointing=true": model.activation_checkpointing is not True,
        "model.offload_reference=true": copied
        and has_reference
        and not model.offload_reference
        and offloads(REFERENCE),
        "optimizer.offload=true": by_gradient and not optimizer.offload and offloads(MOMENTS),
        "method.kl.estimator=k3": needs_reference_head(method),
        "optimizer.kind=adamw_8bit": by_gradient and optimizer.kind != "adamw_8bit",
        "model.weights=bfloat16": by_gradient and model.weights != "bfloat16" and model.dtype != "float32",
        "model.weights=4bit": can_be_4bit and model.weights != "4bit" and on_gpu,
        f"method.form=penalty (the constraint has {TRUST_REGION_VECTORS} more vectors of the size of the trained "
        "weights)": not method.steps_by_gradient,
        "model.lora={}": model.lora is None and method.trains == "policy" and model.chat != "minted",
    }
    helpful = [switch for switch, helps in switches.items() if helps]
    also = f", or set {' or '.join(helpful)}" if helpful else ""
    others = others_bytes(config) if _is_of_gpu(error) else 0
    held = f"Other processes hold {memory_text(others)} of this GPU; model.memory_gb is a run's share of it. "
    return f"out of memory; earlier checkpoints are intact. {held if others else ''}Lower {', '.join(settings)}{also}"
