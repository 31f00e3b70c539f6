"""Memory: how many tokens fit into a forward and backward pass, and the error when memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch, Samples
from vigneron.config import DEFAULT_MICROBATCH_TOKENS, Config
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import scores
from vigneron.rollout.engine.key_value_cache import default_cache_bytes

# Share of the memory left after optimizer, gradients and sampler that a pass may take.
SHARE = 0.7
# Tokens of the smaller of the two measured passes: more than a chunk of the head, so that both include its cost.
PROBE_TOKENS = 2 * HEAD_CHUNK


def find_microbatch_tokens(policy: Policy, longest: int) -> int:
    """The number of tokens that safely fit into a pass, up to a size beyond which speed hardly improves.

    On a CUDA device, the peak memory of two small forward and backward passes gives the bytes per token.
    """
    if policy.device.type != "cuda":
        return DEFAULT_MICROBATCH_TOKENS
    rows = -(-PROBE_TOKENS // longest)
    try:
        fewer, more = (_peak_bytes(policy, longest, count) for count in (rows, 2 * rows))
    except torch.OutOfMemoryError:
        return longest
    per_token = max(1, more - fewer) / (rows * longest)
    fixed = max(0, fewer - per_token * rows * longest)
    torch.cuda.empty_cache()
    trained = sum(ranks.local_tensor(parameter).nbytes for _, parameter in policy.trainable())
    free, _ = torch.cuda.mem_get_info(policy.device)
    reserved = 3 * trained + 1.5 * default_cache_bytes(policy.device)  # gradients and AdamW's two moments; the sampler
    room = SHARE * (free - reserved - fixed)
    fits = int(room / per_token) // 256 * 256
    return max(longest, min(DEFAULT_MICROBATCH_TOKENS, fits))


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
        raise UserError(_advice(config)) from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    signs = ("can't allocate memory", "not enough memory", "out of memory", "cublas_status_alloc_failed")
    return any(sign in text for sign in signs)


def _advice(config: Config) -> str:
    samples = config.prompts_per_step * config.group_size
    settings: list[Any] = [
        f"microbatch_tokens (now {config.microbatch_tokens})",
        f"max_new_tokens ({config.max_new_tokens})",
        f"samples per step ({samples}: prompts_per_step × group_size)",
    ]
    switches = [] if config.model.activation_checkpointing else ["model.activation_checkpointing=true"]
    switches += [] if config.model.lora else ["model.lora={}"]
    also = f", or set {' or '.join(switches)}" if switches else ""
    return f"out of memory; earlier checkpoints are intact. Lower {', '.join(settings)}{also}"
