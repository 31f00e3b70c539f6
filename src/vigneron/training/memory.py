"""Memory: how many tokens fit into a forward and backward pass."""

import gc
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from vigneron.batch import Batch, Samples
from vigneron.config import DEFAULT_MICROBATCH_TOKENS, Config, OptimizerConfig
from vigneron.config.distill import needs_parent_head
from vigneron.config.kl import has_exact_kl
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.cuda_graphs import release_pools
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.held_weights import MATRICES
from vigneron.policy.load import checkpoint_activations
from vigneron.policy.logprobs import Critic, ExactKl, ValueHead, score
from vigneron.policy.model import Policy
from vigneron.policy.model_names import local_config
from vigneron.policy.reference import Reference
from vigneron.policy.reward_model import scores
from vigneron.rollout.engine import cuda_memory
from vigneron.training.held_parts import CONTEXT_BYTES
from vigneron.training.method_copies import NO_COPIES, Copies, later_bytes, later_update_bytes
from vigneron.training.sampling_graphs import BESIDE_CACHE
from vigneron.values import GB, memory_text

# Share of the memory left after everything that stays that a pass, or the cache, may take.
SHARE = 0.8
# Tokens of the smaller of the two measured passes: more than a chunk of the head, so that both include its cost.
PROBE_TOKENS = 2 * HEAD_CHUNK
GAPS = 0.03
"""Share of the memory that is left for gaps between tensors, which torch cannot give back. Measured: 2 % when a run of
a 1.5B model on an H200 ran out of memory."""
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


ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def grow_segments(config: Config, device: torch.device) -> None:
    """Let torch's allocator extend its segments: sequences of other lengths would leave gaps in fixed ones, up to a
    quarter of the memory. Not against the user's own settings, nor where weights are handed over in GPU memory (Ray's
    actors may not open such segments, and vLLM in this process cannot sleep with them), nor for a device that is not
    the current one (pytorch issue 196258)."""
    if device.type != "cuda" or any(os.environ.get(name) for name in ALLOCATOR_SETTINGS):
        return
    sampling = config.scale.sampling
    here = device.index is None or device.index == torch.cuda.current_device()
    hands_over = sampling.kind == "ray" or (sampling.kind == "vllm" and sampling.url is None)
    grows = here and not hands_over
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{grows}")


def clear_memory() -> None:
    """Give back what earlier runs of this process have left on the GPU, before anything of this one is loaded."""
    if torch.cuda.is_initialized():
        gc.collect()
        release_pools()
        torch.cuda.empty_cache()


def limit_memory(config: Config, device: torch.device) -> None:
    """Apply `model.memory_gb`: torch may have what the CUDA context leaves of it."""
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    index = torch.cuda.current_device() if device.index is None else device.index
    if config.model.memory_gb is None:  # an earlier run of this process may have had one
        torch.cuda.set_per_process_memory_fraction(1.0, index)
        cuda_memory.set_limit(None)
        return
    allowed = allowed_bytes(config.model.memory_gb, total, torch.cuda.get_device_name(device))
    torch.cuda.set_per_process_memory_fraction(allowed / total, index)
    cuda_memory.set_limit(allowed)


def allowed_bytes(memory_gb: float, total: int, gpu: str) -> int:
    """What torch may have of `model.memory_gb` on a GPU of `total` bytes."""
    wanted = int(memory_gb * GB)
    if wanted > total:
        raise UserError(f"model.memory_gb: {memory_gb:g} GB, and {gpu} has {memory_text(total)}")
    if wanted <= CONTEXT_BYTES:
        raise UserError(
            f"model.memory_gb: {memory_gb:g} GB, of which the CUDA context alone takes {memory_text(CONTEXT_BYTES)}"
        )
    return wanted - CONTEXT_BYTES


def find_sizes(
    policy: Policy,
    longest: int,
    optimizer: OptimizerConfig,
    *,
    wanted: int = MOST_TOKENS,
    may_checkpoint: bool = False,
    reference: Reference | None = None,
    reference_states: int = 0,
    copies: Copies = NO_COPIES,
    sampling_graphs: int = 0,
) -> Sizes:
    """The sizes that safely fit into memory, of passes of at most `wanted` tokens. With `may_checkpoint`, activation
    checkpointing is turned on where few tokens fit without it. All ranks find the same.

    On a CUDA device, the peak memory of two small forward and backward passes gives the bytes per token.
    `reference_states`: bytes of the other policy's hidden states of a step, if the passes compute an exact KL.
    In distillation the reference is the parent. `sampling_graphs`: bytes that the sampler's CUDA graphs will keep.
    """
    if policy.device.type != "cuda":
        return Sizes(min(wanted, DEFAULT_MICROBATCH_TOKENS), None)

    def fitting(most: int = wanted) -> tuple[int, int]:
        """By passes of at most so many tokens, on the rank with the least memory."""
        free = free_bytes(policy.device) - sampling_graphs
        rows = probe_rows(longest, most)
        tokens, cache_bytes = _fitting_here(
            policy, free, (rows, longest), optimizer, reference, reference_states, copies
        )
        return -int(ranks.all_reduce_max(-tokens)), -int(ranks.all_reduce_max(-cache_bytes))

    fits, cache_bytes = fitting()
    tight = fits < wanted
    if tight and policy.graphed:
        policy.graphed = False
        fits, cache_bytes = fitting()
    checkpointing = may_checkpoint and fits < min(wanted, FEW_TOKENS) and bool(decoder_layers(policy.causal))
    if checkpointing:
        checkpoint_activations(policy)
        fits, cache_bytes = fitting()
    if fits < (few := min(wanted, HEAD_CHUNK)):
        fits = max(fits, min(few, fitting(few)[0]))  # within a chunk of the head, passes take less than larger ones say
    return Sizes(max(longest, min(wanted, fits)), cache_bytes, checkpointing, tight)


def reference_states_bytes(config: Config, hidden_size: int) -> int:
    """Hidden states of a step's samples in float32, of the reference, the policy that sampled or a parent, which an
    exact KL in the loss needs; else 0."""
    if needs_parent_head(config.method):
        parent = local_config(str(config.method.parent_model))
        hidden_size = hidden_size if parent is None else parent.get_text_config().hidden_size
    elif not has_exact_kl(config.method):
        return 0
    samples = config.prompts_per_step * (config.group_size if config.method.reads == "prompts" else 1)
    return samples * config.completion_tokens * hidden_size * 4


def probe_rows(longest: int, wanted: int) -> int:
    """Samples in the smaller of the two measured passes: the larger one has twice as many, within the wanted tokens."""
    return max(1, min(-(-PROBE_TOKENS // longest), wanted // (2 * longest)))


def _fitting_here(
    policy: Policy,
    free: int,
    probe: tuple[int, int],
    optimizer: OptimizerConfig,
    reference: Reference | None,
    reference_states: int,
    copies: Copies,
) -> tuple[int, int]:
    """Tokens of a pass, and bytes of the cache, in `free` bytes. `probe`: rows of the smaller measured pass, and their
    tokens."""
    rows, longest = probe
    gradients = sum(ranks.local_tensor(parameter).nbytes for _, parameter in policy.trainable())
    offloaded = 0 if reference is None or reference.host is None else reference.host.bytes
    free -= _copied_bytes(policy) if copies.engine else 0
    free -= later_bytes(policy, optimizer, copies)
    of_graphs = gradients if policy.graphed else 0
    cache_bytes = max(2**28, int(SHARE * (free - of_graphs - BESIDE_CACHE)))
    exact_kl = None
    if reference is not None and reference_states:
        # The copy that a method keeps is not there yet; the policy's own head takes its place.
        exact_kl = ExactKl(Reference(policy, shares_weights=False) if copies.keeps_previous else reference)
    try:
        fewer, more = (_peak_bytes(policy, longest, count, exact_kl, copies.own_critic) for count in (rows, 2 * rows))
    except torch.OutOfMemoryError:
        return 0, cache_bytes
    finally:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(policy.device)  # a run's peaks are those of its steps
    updating = gradients + later_update_bytes(policy, gradients, copies)
    room = free - reference_states - max(updating, of_graphs + offloaded)
    return fitting_tokens(room, fewer, more, rows * longest), cache_bytes


def fitting_tokens(room: float, fewer: float, more: float, tokens: int) -> int:
    """How many tokens fit into so many bytes, if a pass over `tokens` takes `fewer` and one over twice as many `more`:
    bytes are linear in tokens."""
    per_token = max(1, more - fewer) / tokens
    fixed = max(0, fewer - per_token * tokens)
    return max(0, int(SHARE * (room - fixed) / per_token) // 256 * 256)


def free_bytes(device: torch.device) -> int:
    """What torch may still take, but for gaps. Memory that it cannot give back, as that of CUDA graphs, is not free."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    limit = cuda_memory.limit()
    if limit is not None:
        free, total = min(free, limit - torch.cuda.memory_reserved(device)), limit
    return int(free - GAPS * total)


def _copied_bytes(policy: Policy) -> int:
    """The engine's copies of matrices in the compute dtype."""
    if policy.compute_dtype != torch.bfloat16:
        return 0
    matrices = [module for module in policy.causal.modules() if isinstance(module, MATRICES)]
    weights = [module.weight for module in matrices if module.weight.dtype == torch.float32]
    return sum(2 * weight.numel() for weight in weights)


def _peak_bytes(policy: Policy, width: int, rows: int, exact_kl: ExactKl | None, own_critic: bool) -> int:
    """Peak memory of a forward and backward pass over `rows` rows, beside weights and gradients."""
    batch = probe_batch(policy, width, rows, exact_kl)
    graphed, policy.graphed = policy.graphed, False
    try:
        with_gradients(policy)
        torch.cuda.reset_peak_memory_stats(policy.device)
        before = torch.cuda.memory_allocated(policy.device)
        probe_loss(policy, batch, exact_kl, own_critic=own_critic).backward()
        return torch.cuda.max_memory_allocated(policy.device) - before
    finally:
        policy.graphed = graphed
        policy.model.zero_grad(set_to_none=True)


def with_gradients(policy: Policy) -> None:
    """All gradients, as the microbatches after the first one find them."""
    for _, parameter in policy.trainable():
        parameter.grad = torch.zeros_like(parameter)


def probe_batch(policy: Policy, width: int, rows: int, exact_kl: ExactKl | None = None) -> Batch:
    """Samples of `width` tokens, a quarter of them prompts."""
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
    if exact_kl is None:
        return batch
    return batch.with_signals(
        **{exact_kl.states: torch.zeros(rows, length, exact_kl.other.policy.hidden_size, device=device)}
    )


def probe_loss(policy: Policy, batch: Batch, exact_kl: ExactKl | None = None, *, own_critic: bool = False) -> Tensor:
    """With `own_critic`, the policy's trunk is the critic's too: a second pass beside the first."""
    if policy.causal.get_output_embeddings() is None:
        return scores(policy, batch).sum()
    critic = None
    if own_critic:
        critic = Critic(ValueHead(policy.hidden_size).to(policy.device), "every_token", policy)
    now = score(policy, batch, Sampling(), critic=critic, exact_kl=exact_kl)
    kl = 0 if exact_kl is None else now.exact_kl_BT.sum()
    values = 0 if critic is None else now.values_BT.sum()
    return now.logprobs_BT.sum() + now.entropy_BT.sum() + kl + values
