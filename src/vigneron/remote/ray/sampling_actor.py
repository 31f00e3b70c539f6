"""A Ray actor that samples: the engine with a copy of the policy, whose weights it receives version by version."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vigneron.config import Config
from vigneron.policy.compiling import can_compile, set_compiling
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.model import Policy
from vigneron.remote.ray.cuda_ipc import Handle, gpu_uuid, open_handles
from vigneron.remote.ray.pool import PoolActor, UnusableActor
from vigneron.remote.ray.weight_packer import WeightPacker, fingerprint
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.sample import sampler_of

COPY_THREADS = 8


@dataclass(frozen=True)
class ActorInfo:
    """The result of an actor's `setup`."""

    notice: str | None
    base: str
    """Checksum of the frozen weights, which are never sent."""
    gpu: str | None = None
    """UUID of its GPU, if any."""


class SamplingActor(PoolActor):
    def __init__(self, config: Config) -> None:
        """`config` is the run's resolved config."""
        device = config.model.device.partition(":")[0]  # an actor sees only the GPUs that Ray assigned to it
        model = config.model.model_copy(update={"device": device, "activation_checkpointing": False})
        self._config = config.model_copy(update={"model": model})
        self._version: int | None = None
        self._prints: dict[int, Tensor] = {}
        self._staging: Tensor | None = None
        self._shared: list[Tensor] = []

    def setup(self) -> ActorInfo:
        policy = policy_from_config(self._config)
        policy.compiled = self._config.model.compile is True and can_compile(policy.device)
        set_compiling(policy.compiled)
        self._policy: Policy = policy
        self._packer = WeightPacker(policy)
        self._threads = ThreadPoolExecutor(COPY_THREADS)
        base = WeightPacker(policy, frozen=True).checksum_now()
        return ActorInfo(sampler_of(policy).notice, base, gpu_uuid(policy.device))

    def take(self, part: int, data: np.ndarray) -> None:
        """Load a part of a new version. The actor cannot sample until all parts are acknowledged."""
        self._version = None
        self._packer.unpack(part, self._on_device(data))
        self._prints[part] = fingerprint(self._packer.packed(part))  # of the loaded weights, not of the received bytes

    def acknowledge(self, version: int) -> tuple[int, str]:
        if len(self._prints) != len(self._packer.parts):
            raise UnusableActor(f"received {len(self._prints)} of {len(self._packer.parts)} parts of version {version}")
        prints = [self._prints[part] for part in range(len(self._packer.parts))]
        self._version, self._prints = version, {}
        return version, self._packer.checksum(prints)

    def read(self, version: int, handles: Sequence[Handle] | None) -> tuple[int, str] | None:
        """Copy a new version from the trainer's memory on this GPU and acknowledge it; None if that is not possible."""
        if handles is not None:
            try:
                self._shared = open_handles(handles)
            except Exception:  # CUDA IPC can fail in many ways, for example in a container
                self._shared = []
        if len(self._shared) != len(self._packer.entries):
            return None
        self._version = None
        self._packer.copy_from(self._shared)
        checksum = self._packer.checksum_now()
        self._version, self._prints = version, {}
        return version, checksum

    def release_handles(self) -> None:
        self._shared = []

    def sample(self, version: int, ends: frozenset[int], request: Request) -> Completions:
        if version != self._version:
            raise UnusableActor(f"version {version} was requested, the actor has {self._version}")
        self._policy.eos_ids = ends
        done = sampler_of(self._policy).sample(request).trimmed()
        on_cpu: dict[str, Any] = {name: value.cpu() for name, value in vars(done).items() if isinstance(value, Tensor)}
        return replace(done, **on_cpu)

    def _on_device(self, data: np.ndarray) -> Tensor:
        """Copy to the device; for a GPU through pinned memory: Ray's shared memory cannot be copied asynchronously."""
        if self._policy.device.type != "cuda":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # shared memory is read-only, and only read
                return torch.from_numpy(data)
        if self._staging is None or len(self._staging) < len(data):
            self._staging = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
        torch.cuda.current_stream().synchronize()  # the previous part has been copied out
        into: Any = self._staging.numpy()[: len(data)]
        step = -(-len(data) // COPY_THREADS)
        starts = range(0, len(data), step)
        list(self._threads.map(lambda at: np.copyto(into[at : at + step], data[at : at + step]), starts))
        return self._staging[: len(data)].to(self._policy.device, non_blocking=True)
