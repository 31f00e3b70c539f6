"""Sampling that the first of several ranks asks for, by actors or by a server; the others wait for what comes."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vigneron.distributed import ranks
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions, Request, Sampler


class Mirror:
    """A whole copy, on the first rank's host, of a policy whose weights ranks share: for whoever needs all of them."""

    def __init__(self, policy: Policy) -> None:
        self._shared = policy
        self.policy = policy
        if ranks.is_rank0():
            weights = {
                name: nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad)
                for name, one in policy.model.named_parameters()
            }
            model = policy.sharding.filled(weights).eval().to("cpu")
            self.policy = replace(policy, model=model, device=torch.device("cpu"), sharding=None, sampler=None)
        self._version: int | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """By all ranks, if the weights have changed."""
        if self._version == self._shared.version:
            return
        into = dict(self.policy.model.named_parameters())
        for name, weight in self._shared.model.named_parameters():
            whole = ranks.full_tensor(weight)
            if ranks.is_rank0():
                into[name].copy_(whole)
        self._version = self.policy.version = self._shared.version


class Central:
    """The sampler of every rank. `inner` is the first one's, which asks."""

    def __init__(self, inner: Sampler | None, mirror: Mirror | None, *, exact: bool) -> None:
        self._inner, self._mirror, self.exact = inner, mirror, exact
        self.notice = inner.notice if inner is not None else None

    def sample_for_all(self, request: Request, device: torch.device) -> Completions:
        """All ranks call it, and have what came."""
        if self._mirror is not None:
            self._mirror.refresh()
        return _moved(ranks.run_on_rank0(lambda: _moved(self.sample(request), torch.device("cpu"))), device)

    def sample(self, request: Request) -> Completions:
        assert self._inner is not None
        return self._inner.sample(request)


def _moved(done: Completions, device: torch.device) -> Completions:
    found: dict[str, Any] = {name: v.to(device) for name, v in vars(done).items() if isinstance(v, Tensor)}
    return replace(done, **found)
