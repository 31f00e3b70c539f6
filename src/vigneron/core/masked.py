"""Masked operations: masked-out values may be NaN and never reach a result or a gradient."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

# exp(20) ≈ 5e8: far outside any clip range, and finite in every dtype in use.
LOG_RATIO_CAP = 20.0


def where_finite(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function(*tensors)` elementwise, NaN wherever an input is not finite.

    The function gets 0 at those positions, so its gradient there is 0 and not 0 · NaN. A non-finite position that is
    not masked out later makes the loss NaN, which is caught.
    """
    finite = torch.stack([torch.isfinite(t) for t in torch.broadcast_tensors(*tensors)]).all(0)
    values = function(*(torch.where(finite, t, 0.0) for t in tensors))
    return torch.where(finite, values, torch.nan)


def masked_sum(values_BT: Float[Tensor, "B T"], mask_BT: Shaped[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Σₜ over each row's positions where the mask (bool, or 0 and 1 in any dtype) is 1."""
    return torch.where(mask_BT.bool(), values_BT, 0.0).sum(1)


def length_mask(lengths_B: Tensor, width: int) -> Bool[Tensor, "B T"]:
    """1 on the first `lengths_B[i]` positions of row i."""
    return torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
