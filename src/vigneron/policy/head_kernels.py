"""Triton kernels for the LM head: the statistics of a token's logits, and their gradient, in one pass each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    logits, ids, chosen, entropy, log_sum, columns, INVERSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    # Σ exp(z − m) and Σ exp(z − m) (z − m), for the largest z so far, m.
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    weighted = tl.zeros([], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        z = tl.load(start + at, mask=at < columns, other=float("-inf")) * INVERSE
        new_highest = tl.maximum(highest, tl.max(z))
        fall = tl.where(highest == float("-inf"), 0.0, highest - new_highest)
        shrink = tl.where(highest == float("-inf"), 0.0, tl.exp(fall))
        above = tl.where(at < columns, z - new_highest, 0.0)
        parts = tl.where(at < columns, tl.exp(above), 0.0)
        weighted = shrink * (weighted + fall * total) + tl.sum(parts * above)
        total = shrink * total + tl.sum(parts)
        highest = new_highest
    logarithm = tl.log(total)
    z = tl.load(start + tl.load(ids + row)) * INVERSE
    tl.store(log_sum + row, highest + logarithm)
    tl.store(chosen + row, z - highest - logarithm)
    tl.store(entropy + row, logarithm - weighted / total)


def statistics(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of softmax(logits / temperature): the log-prob of the chosen token, the entropy, and log Σ exp."""
    count, columns = logits_NV.shape
    out = [torch.empty(count, dtype=torch.float32, device=logits_NV.device) for _ in range(3)]
    if count:
        _statistics[(count,)](logits_NV, ids_N, *out, columns, INVERSE=1 / temperature, BLOCK=BLOCK, num_warps=8)
    return out[0], out[1], out[2]


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    logits, ids, log_sum, entropy, to_chosen, to_entropy, out, columns, INVERSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < columns
    z = tl.load(logits + row * columns + at, mask=real, other=0.0) * INVERSE
    logprob = z - tl.load(log_sum + row)
    of_chosen = tl.load(to_chosen + row)
    factor = -of_chosen - tl.load(to_entropy + row) * (logprob + tl.load(entropy + row))
    gradient = tl.exp(logprob) * factor + tl.where(at == tl.load(ids + row), of_chosen, 0.0)
    tl.store(out + row * columns + at, (gradient * INVERSE).to(out.dtype.element_ty), mask=real)


def gradient(
    logits_NV: Tensor, ids_N: Tensor, temperature: float, own: tuple[Tensor, ...], dtype: torch.dtype
) -> Tensor:
    """The gradient of the logits, in `dtype`. `own`: log Σ exp, entropy, and the gradients of both statistics."""
    count, columns = logits_NV.shape
    out = torch.empty(count, columns, dtype=dtype, device=logits_NV.device)
    if count:
        _gradient[(count, triton.cdiv(columns, BLOCK))](
            logits_NV, ids_N, *(values.float().contiguous() for values in own), out, columns,
            INVERSE=1 / temperature, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
    return out
