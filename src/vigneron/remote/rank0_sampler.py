"""Remote sampling in a run of several ranks: rank 0 requests the samples and broadcasts them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vigneron.distributed import ranks
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions, Request, Sampler


class UnshardedCopy:
    """An unsharded copy of a sharded policy, in rank 0's host memory, from which weights are sent."""

    def __init__(self, policy: Policy) -> None:
        self._sharded = policy
        self.policy = policy
        if ranks.is_rank0():
            weights = {
                name: nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad)
                for name, one in policy.model.named_parameters()
            }
            model = policy.sharding.with_weights(weights).eval().to("cpu")
            self.policy = replace(policy, model=model, device=torch.device("cpu"), sharding=None, sampler=None)
        self._version: int | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights if they have changed. A collective operation: every rank calls it."""
        if self._version == self._sharded.version:
            return
        into = dict(self.policy.model.named_parameters())
        for name, weight in self._sharded.model.named_parameters():
            full = ranks.full_tensor(weight)
            if ranks.is_rank0():
                into[name].copy_(full)
        self._version = self.policy.version = self._sharded.version


class Rank0Sampler:
    """The sampler of every rank. `inner` is rank 0's remote sampler, None on the others."""

    def __init__(self, inner: Sampler | None, unsharded: UnshardedCopy | None, *, exact: bool) -> None:
        self._inner, self._unsharded, self.exact = inner, unsharded, exact
        self.notice = inner.notice if inner is not None else None

    def sample_for_all(self, request: Request, device: torch.device) -> Completions:
        """Sample on rank 0 and return the completions on every rank, all of which call it."""
        if self._unsharded is not None:
            self._unsharded.refresh()
        return _moved(ranks.run_on_rank0(lambda: _moved(self.sample(request), torch.device("cpu"))), device)

    def sample(self, request: Request) -> Completions:
        assert self._inner is not None
        return self._inner.sample(request)


def _moved(done: Completions, device: torch.device) -> Completions:
    tensors: dict[str, Any] = {name: v.to(device) for name, v in vars(done).items() if isinstance(v, Tensor)}
    return replace(done, **tensors)
