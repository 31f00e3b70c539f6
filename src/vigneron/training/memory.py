"""Memory: how many tokens fit into a forward and backward pass, and the error when memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch, Samples
from vigneron.config import DEFAULT_MICROBATCH_TOKENS, Config, OptimizerConfig
from vigneron.core.draws import Sampling
from vigneron.core.moments import device_state_bytes
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.frozen import MATRICES
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.load import checkpoint_activations
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import scores
from vigneron.rollout.engine import cuda_memory

# Share of the memory left after everything that stays that a pass, or the cache, may take.
SHARE = 0.8
# Tokens of the smaller of the two measured passes: more than a chunk of the head, so that both include its cost.
PROBE_TOKENS = 2 * HEAD_CHUNK
# Bytes for what sampling needs beside weights and cache: prompts in flight, logits.
BESIDE_CACHE = 2**30
# In the message of the error where the cache of sampling does not fit.
CACHE = "sampler's cache"


MOST_TOKENS = 16384
"""Of a pass on a GPU: more hardly improve speed."""
FEW_TOKENS = 4096
"""A pass over fewer tokens does not keep a large GPU busy: recomputing activations for more of them is faster."""


@dataclass(frozen=True)
class Sizes:
    """What fits into memory: the tokens of a forward and backward pass, and the bytes of the cache of sampling. None:
    the engine's default."""

    microbatch_tokens: int
    cache_bytes: int | None
    checkpointing: bool = False
    """Whether that takes activation checkpointing."""
    tight: bool = False
    """Whether memory limits the tokens: CUDA graphs of passes would keep memory that sampling needs."""


def limit_memory(config: Config, device: torch.device) -> None:
    """Apply `model.memory_gb`."""
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    index = torch.cuda.current_device() if device.index is None else device.index
    if config.model.memory_gb is None:  # an earlier run of this process may have had one
        torch.cuda.set_per_process_memory_fraction(1.0, index)
        cuda_memory.set_limit(None)
        return
    wanted = int(config.model.memory_gb * 2**30)
    if wanted > total:
        raise UserError(
            f"model.memory_gb: {config.model.memory_gb:g} GB, and {torch.cuda.get_device_name(device)} has "
            f"{total / 2**30:.1f} GB"
        )
    torch.cuda.set_per_process_memory_fraction(wanted / total, index)
    cuda_memory.set_limit(wanted)


def find_sizes(
    policy: Policy, longest: int, optimizer: OptimizerConfig, *, wanted: int = MOST_TOKENS, may_checkpoint: bool = False
) -> Sizes:
    """The sizes that safely fit into memory, of passes of at most `wanted` tokens. With `may_checkpoint`, activation
    checkpointing is turned on where few tokens fit without it. All ranks find the same.

    On a CUDA device, the peak memory of two small forward and backward passes gives the bytes per token.
    """
    if policy.device.type != "cuda":
        return Sizes(min(wanted, DEFAULT_MICROBATCH_TOKENS), None)
    fits, cache_bytes = _fitting(policy, longest, optimizer)
    tight = fits < wanted
    if tight and policy.graphed:
        policy.graphed = False
        fits, cache_bytes = _fitting(policy, longest, optimizer)
    checkpointing = may_checkpoint and fits < min(wanted, FEW_TOKENS) and bool(decoder_layers(policy.causal))
    if checkpointing:
        checkpoint_activations(policy)
        fits, cache_bytes = _fitting(policy, longest, optimizer)
    return Sizes(max(longest, min(wanted, fits)), cache_bytes, checkpointing, tight)


def _fitting(policy: Policy, longest: int, optimizer: OptimizerConfig) -> tuple[int, int]:
    """Tokens of a pass, and bytes of the cache, on the rank with the least memory."""
    tokens, cache_bytes = _fitting_here(policy, longest, optimizer)
    return -int(ranks.all_reduce_max(-tokens)), -int(ranks.all_reduce_max(-cache_bytes))


def _fitting_here(policy: Policy, longest: int, optimizer: OptimizerConfig) -> tuple[int, int]:
    rows = -(-PROBE_TOKENS // longest)
    gradients = sum(ranks.local_tensor(parameter).nbytes for _, parameter in policy.trainable())
    torch.cuda.empty_cache()
    free = _free_bytes(policy.device) - _copied_bytes(policy) - _moment_bytes(policy, optimizer)
    cache_bytes = max(2**28, int(SHARE * (free - (gradients if policy.graphed else 0) - BESIDE_CACHE)))
    try:
        fewer, more = (_peak_bytes(policy, longest, count) for count in (rows, 2 * rows))
    except torch.OutOfMemoryError:
        return 0, cache_bytes
    finally:
        torch.cuda.empty_cache()
    per_token = max(1, more - fewer) / (rows * longest)
    fixed = max(0, fewer - per_token * rows * longest - gradients)
    return int(SHARE * (free - gradients - fixed) / per_token) // 256 * 256, cache_bytes


def _free_bytes(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    limit = cuda_memory.limit()
    return free if limit is None else min(free, limit - torch.cuda.memory_allocated(device))


def _moment_bytes(policy: Policy, optimizer: OptimizerConfig) -> int:
    """AdamW's moments, which come with the first update."""
    numels = (ranks.local_tensor(weight).numel() for _, weight in policy.trainable())
    return device_state_bytes(optimizer.kind, numels, offload=optimizer.offload)


def _copied_bytes(policy: Policy) -> int:
    """The engine's copies of matrices in the compute dtype."""
    if policy.compute_dtype != torch.bfloat16:
        return 0
    matrices = [module for module in policy.causal.modules() if isinstance(module, MATRICES)]
    weights = [module.weight for module in matrices if module.weight.dtype == torch.float32]
    return sum(2 * weight.numel() for weight in weights)


def _peak_bytes(policy: Policy, width: int, rows: int) -> int:
    """Peak memory of a forward and backward pass over `rows` rows, above what is allocated before."""
    device = policy.device
    prompt, length = max(1, width // 4), width - max(1, width // 4)
    zeros_BT = torch.zeros(rows, length, device=device)
    batch = Batch(
        Samples(
            prompt_ids=tuple((policy.pad_id,) * prompt for _ in range(rows)),
            completion_BT=zeros_BT.long(),
            spans=tuple(((prompt, width),) for _ in range(rows)),
            behaviour_BT=zeros_BT,
            truncated_B=torch.zeros(rows, dtype=torch.bool, device=device),
            group_B=torch.arange(rows, device=device),
            sample_B=torch.arange(rows, device=device),
            prompts=("",) * rows,
            completions=("",) * rows,
        )
    )
    graphed, policy.graphed = policy.graphed, False
    try:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        _objective(policy, batch).backward()
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        policy.graphed = graphed
        policy.model.zero_grad(set_to_none=True)


def _objective(policy: Policy, batch: Batch) -> Tensor:
    if policy.causal.get_output_embeddings() is None:
        return scores(policy, batch).sum()
    now = score(policy, batch, Sampling())
    return now.logprobs_BT.sum() + now.entropy_BT.sum()


@contextmanager
def explained_memory(config: Config) -> Iterator[None]:
    """Turn an out-of-memory error into a `UserError` that names the settings to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise UserError(_advice(config, error)) from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    signs = ("can't allocate memory", "not enough memory", "out of memory", "cublas_status_alloc_failed")
    return any(sign in text for sign in signs)


def _advice(config: Config, error: BaseException) -> str:
    model, optimizer = config.model, config.optimizer
    samples = config.prompts_per_step * config.group_size
    settings: list[Any] = [
        *(["model.cache_gb" + (f" (now {model.cache_gb:g})" if model.cache_gb else "")] if CACHE in str(error) else []),
        f"microbatch_tokens (now {config.microbatch_tokens})",
        f"max_new_tokens ({config.max_new_tokens})",
        f"samples per step ({samples}: prompts_per_step × group_size)",
    ]
    whole = model.lora is None and config.scale.shard == 1 and config.method.steps_by_gradient
    on_gpu = model.device.startswith("cuda") or (model.device == "auto" and torch.cuda.is_available())
    switches = {
        "model.activation_checkpointing=true": model.activation_checkpointing is not True,
        "model.lora={}": model.lora is None,
        "model.weights=bfloat16": whole and model.weights != "bfloat16" and model.dtype != "float32",
        "optimizer.kind=adamw_8bit": whole and optimizer.kind != "adamw_8bit",
        "optimizer.offload=true": whole and not optimizer.offload and on_gpu,
    }
    helpful = [switch for switch, helps in switches.items() if helps]
    also = f", or set {' or '.join(helpful)}" if helpful else ""
    return f"out of memory; earlier checkpoints are intact. Lower {', '.join(settings)}{also}"
