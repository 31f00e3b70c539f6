"""A process that samples: a copy of the policy, brought up to date version by version, and the engine."""

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
from vigneron.policy.from_config import load_child
from vigneron.policy.model import Policy
from vigneron.remote.ray.cuda_ipc import Handle, borrowed, gpu_of
from vigneron.remote.ray.pool import PoolActor, Unfit
from vigneron.remote.ray.weight_packer import Parcel, fingerprint
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.sample import sampler_of

COPY_THREADS = 8


@dataclass(frozen=True)
class Begun:
    notice: str | None
    base: str
    """Checksum of the weights that are never sent: those that are not trained."""
    gpu: str | None = None
    """Which it works on, if any."""


class SamplingActor(PoolActor):
    def __init__(self, config: Config) -> None:
        """The config as resolved by the run: what `auto` means there, it means here."""
        device = config.model.device.partition(":")[0]  # Ray shows an actor the GPUs that are its own
        model = config.model.model_copy(update={"device": device, "activation_checkpointing": False})
        self._config = config.model_copy(update={"model": model})
        self._version: int | None = None
        self._prints: dict[int, Tensor] = {}
        self._staging: Tensor | None = None
        self._lent: list[Tensor] = []

    def begin(self) -> Begun:
        policy = load_child(self._config)
        policy.compiled = self._config.model.compile is True and can_compile(policy.device)
        set_compiling(policy.compiled)
        self._policy: Policy = policy
        self._parcel = Parcel(policy)
        self._threads = ThreadPoolExecutor(COPY_THREADS)
        base = Parcel(policy, frozen=True).checksum_now()
        return Begun(sampler_of(policy).notice, base, gpu_of(policy.device))

    def take(self, part: int, data: np.ndarray) -> None:
        """A part of a new version. Until all of it is acknowledged, there is none to sample from."""
        self._version = None
        self._parcel.unpack(part, self._on_device(data))
        self._prints[part] = fingerprint(self._parcel.packed(part))  # of what is in place now, not of what came

    def acknowledge(self, version: int) -> tuple[int, str]:
        if len(self._prints) != len(self._parcel.parts):
            raise Unfit(f"{len(self._prints)} of {len(self._parcel.parts)} parts of version {version} have come")
        prints = [self._prints[part] for part in range(len(self._parcel.parts))]
        self._version, self._prints = version, {}
        return version, self._parcel.checksum(prints)

    def read(self, version: int, handles: Sequence[Handle] | None) -> tuple[int, str] | None:
        """A new version from where it is trained, on this GPU; acknowledged, or None: this process cannot."""
        if handles is not None:
            try:
                self._lent = borrowed(handles)
            except Exception:  # the edge to torch's own way of sharing: in a container of its own, perhaps
                self._lent = []
        if len(self._lent) != len(self._parcel.entries):
            return None
        self._version = None
        self._parcel.copy_from(self._lent)
        found = self._parcel.checksum_now()
        self._version, self._prints = version, {}
        return version, found

    def let_go(self) -> None:
        self._lent = []

    def sample(self, version: int, ends: frozenset[int], request: Request) -> Completions:
        if version != self._version:
            raise Unfit(f"asked for version {version}, it has {self._version}")
        self._policy.eos_ids = ends
        done = sampler_of(self._policy).sample(request).trimmed()
        found: dict[str, Any] = {name: value.cpu() for name, value in vars(done).items() if isinstance(value, Tensor)}
        return replace(done, **found)

    def _on_device(self, data: np.ndarray) -> Tensor:
        """On a GPU by way of memory that it can copy from while we go on: shared memory is not."""
        if self._policy.device.type != "cuda":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # shared memory is read-only, and only read
                return torch.from_numpy(data)
        if self._staging is None or len(self._staging) < len(data):
            self._staging = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
        torch.cuda.current_stream().synchronize()  # the last part has left it
        into: Any = self._staging.numpy()[: len(data)]
        step = -(-len(data) // COPY_THREADS)
        starts = range(0, len(data), step)
        list(self._threads.map(lambda at: np.copyto(into[at : at + step], data[at : at + step]), starts))
        return self._staging[: len(data)].to(self._policy.device, non_blocking=True)
