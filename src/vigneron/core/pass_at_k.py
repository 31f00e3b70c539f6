"""pass@k: the chance that at least one of k samples is correct, estimated from n ≥ k samples of each prompt."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def pass_at_k(correct_P: Int[Tensor, " P"], *, samples: int | Int[Tensor, " P"], k: int) -> Float[Tensor, " P"]:
    """1 − C(n − c, k) / C(n, k) of each prompt, of whose n samples c are correct   (Chen et al. 2021, eq. 1).

    `samples` is n, of all prompts or of each.
    Unbiased, unlike 1 − (1 − c/n)^k. As the product 1 − Π (1 − k/i) over i = n − c + 1 … n, which does not overflow.
    """
    samples_P = torch.as_tensor(samples).expand_as(correct_P)
    if not 1 <= k <= samples_P.min():
        raise ValueError(f"k is {k}: it lies between 1 and the number of samples, {samples_P.min()}")
    i_N = torch.arange(1, int(samples_P.max()) + 1, dtype=torch.float64)
    factors_N = (1 - k / i_N).clamp(min=0)
    among_last_PN = (i_N > (samples_P - correct_P)[:, None]) & (i_N <= samples_P[:, None])
    return 1 - torch.where(among_last_PN, factors_N, 1.0).prod(1)
