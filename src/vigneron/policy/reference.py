"""The reference: the policy at the run's start, which scores samples for the KL. Its weights can be in host memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vigneron.policy.model import Policy


class HostWeights:
    """The weights of a frozen model in host memory, pinned if they are used on a GPU. `load` copies them to the device;
    they do not change there, so `unload` drops the copies."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._held: dict[nn.Parameter, Tensor] = {weight: _on_host(weight, device) for weight in model.parameters()}
        self.loaded = True
        self.unload()

    @property
    def bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def load(self) -> None:
        self.loaded = True  # also if memory runs out half-way
        for weight, held in self._held.items():
            weight.data = held.to(self._device, copy=True, non_blocking=True)

    def unload(self) -> None:
        for weight, held in self._held.items():
            weight.data = held
        self.loaded = False

    def keep_on_device(self, weight: nn.Parameter) -> None:
        held = self._held.pop(weight, None)
        if held is not None and not self.loaded:
            weight.data = held.to(self._device, copy=True)


def _on_host(weight: Tensor, device: torch.device) -> Tensor:
    host = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=device.type == "cuda")
    return host.copy_(weight.detach())


@dataclass
class Reference:
    """The policy at the run's start: a frozen copy, or the trained model with its adapter disabled."""

    _policy: Policy | Callable[[], Policy]
    """A function that loads it, where training does without."""
    shares_weights: bool
    host: HostWeights | None = None
    """The copy's weights, if they are on the device only while they are used."""
    _keeps_loaded: bool = False

    @classmethod
    def of(cls, policy: Policy) -> "Reference":
        if hasattr(policy.model, "disable_adapter"):
            return cls(policy, shares_weights=True)
        return cls(policy.frozen_copy(), shares_weights=False)

    @classmethod
    def loaded_later(cls, policy: Policy, load: Callable[[], Policy]) -> "Reference":
        """Without a copy: the model is loaded again if it is asked for."""
        return cls.of(policy) if hasattr(policy.model, "disable_adapter") else cls(load, shares_weights=False)

    @property
    def policy(self) -> Policy:
        if not isinstance(self._policy, Policy):
            self._policy = self._policy()
        return self._policy

    @property
    def is_loaded(self) -> bool:
        return isinstance(self._policy, Policy)

    def offload(self) -> None:
        """Move the weights of the copy to host memory, from where each use copies them to the device."""
        assert not self.shares_weights
        self.policy.offloaded = True
        self.policy.drop_graphs()
        self.host = HostWeights(self.policy.model, self.policy.device)

    @torch.no_grad()
    def follow(self, policy: Policy) -> None:
        """Copy the current weights of a policy of the same shape."""
        pairs = zip(self.policy.model.parameters(), policy.model.parameters(), strict=True)
        for mine, theirs in pairs:
            if theirs.requires_grad:
                mine.copy_(theirs)

    def keep_head(self) -> None:
        """Keep the head's weights on the device: an exact KL needs them in the update."""
        if self.host is None:
            return
        head = self.policy.causal.get_output_embeddings()
        if head is not None:
            for weight in head.parameters():
                self.host.keep_on_device(weight)

    @contextmanager
    def active(self, *, head_only: bool = False) -> Iterator[Policy]:
        """The reference's policy, without gradients. `head_only`: only its logits of given hidden states are used,
        after `keep_head`."""
        with torch.no_grad():
            if self.shares_weights:
                with self.policy.model.disable_adapter():
                    self.policy.adapter_off = True
                    try:
                        yield self.policy
                    finally:
                        self.policy.adapter_off = False
            elif self.host is None or self.host.loaded or head_only:
                yield self.policy
            else:
                try:
                    self.host.load()
                    yield self.policy
                finally:
                    if not self._keeps_loaded:
                        self._unload()

    @contextmanager
    def kept_loaded(self) -> Iterator[None]:
        """For several passes: offloaded weights are copied to the device by the first one that uses them, if any does,
        and dropped at the end."""
        if self.host is None or self._keeps_loaded:
            yield
            return
        self._keeps_loaded = True
        try:
            yield
        finally:
            self._keeps_loaded = False
            if self.host.loaded:
                self._unload()

    def _unload(self) -> None:
        assert self.host is not None
        self.policy.sampler = None  # it may have used the weights where they were
        self.host.unload()
