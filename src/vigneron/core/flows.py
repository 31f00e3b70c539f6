"""Flows of a GFlowNet over a tree of texts: what is still reachable from every prefix."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.core.masked import where_finite


def log_transition_flows(texts: Sequence[Sequence[int]], rewards: Sequence[float]) -> list[list[float]]:
    """log F(sₜ₊₁) − log F(sₜ) of every token of every text, F(s) = Σ R of the distinct texts that begin with s.

    e to it is the share of the reachable reward that lies behind the token; a policy with these probabilities samples
    each text in proportion to its reward. Rewards are positive; of texts that occur twice, the first one's counts.
    """
    flow: dict[tuple[int, ...], float] = defaultdict(float)
    for text, reward in {tuple(t): r for t, r in zip(reversed(texts), reversed(rewards), strict=True)}.items():
        for end in range(len(text) + 1):
            flow[text[:end]] += reward
    shares = [[flow[tuple(t[: at + 1])] / flow[tuple(t[:at])] for at in range(len(t))] for t in texts]
    return [torch.tensor(row, dtype=torch.float64).log().tolist() for row in shares]


def flow_balance(logprobs_BT: Float[Tensor, "B T"], log_flow_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(log π(aₜ|sₜ) − log F(sₜ₊₁) + log F(sₜ))², the balance of every token (Gao et al. 2025)."""
    return where_finite(lambda logprobs, log_flow: (logprobs - log_flow) ** 2, logprobs_BT, log_flow_BT)
