"""Send versions of the trained weights to Ray actors, which acknowledge them with a checksum.

The weights go through Ray's object store, once for all actors. Actors on the trainer's GPU read them through CUDA IPC.
"""

import atexit
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.remote.ray.pool import Member, Pool, UnusableActor
from vigneron.remote.ray.weight_packer import WeightPacker, fingerprint
from vigneron.timing import phase

# Position of the device index in a handle: the other process may number its GPUs differently.
DEVICE_FIELD = list(signature(rebuild_cuda_tensor).parameters).index("storage_device")

Handle = tuple[Any, ...]


def gpu_uuid(device: torch.device) -> str | None:
    """The GPU's UUID, the same in every process; None without a GPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def ipc_handles(tensors: Sequence[Tensor]) -> list[Handle]:
    """Handles for one process: torch counts the references to them."""
    return [reduce_tensor(tensor)[1] for tensor in tensors]


def open_handles(handles: Sequence[Handle]) -> list[Tensor]:
    """Tensors in the owner's memory: its writes are visible here."""
    device = torch.cuda.current_device()
    local: list[Any] = [(*handle[:DEVICE_FIELD], device, *handle[DEVICE_FIELD + 1 :]) for handle in handles]
    return [rebuild_cuda_tensor(*handle) for handle in local]


_SHARED_MODELS: WeakSet[nn.Module] = WeakSet()


@atexit.register
def _free_shared_memory() -> None:
    """Torch warns when a process exits with memory that it has shared and not freed."""
    for model in _SHARED_MODELS:
        for parameter in model.parameters():
            parameter.untyped_storage().resize_(0)


KEY = "scale.sampling"
# Parts that are copied from the device at a time.
STAGES = 2
# Seconds for an actor to release its CUDA IPC handles.
RELEASE_TIMEOUT_S = 2.0


@dataclass(eq=False)
class SentWeights:
    """A version of the weights. `live`: the policy is not updated until the samples are there, so that actors may read
    its memory."""

    key: int
    live: bool
    sender: "WeightSender"
    checksum: str = ""
    parts: list[Any] = field(default_factory=list)
    wrong: int = 0
    acknowledged: float = 0.0
    """Time of the last acknowledgement."""

    @property
    def version(self) -> int:
        return self.key

    def reads(self, member: Member) -> bool:
        """Whether the actor reads the weights through CUDA IPC."""
        return self.live and member.same_gpu

    def send_parts(self, member: Member) -> None:
        """Send the parts that the actor has not been sent yet."""
        key, count = member.sent_parts
        for number in range(count if key == self.key else 0, len(self.parts)):
            member.handle.take.remote(number, self.parts[number])
        member.sent_parts = (self.key, len(self.parts))

    def send(self, member: Member) -> Any:
        if self.reads(member) and (pending := self.sender.share(member, self.key)) is not None:
            return pending
        if len(self.parts) < len(self.sender.packer.parts):
            self.sender.put(self, ())
        self.send_parts(member)
        return member.handle.acknowledge.remote(self.key)

    def check(self, answer: tuple[int, str] | None, member: Member) -> bool:
        if answer == (self.key, self.checksum):
            self.acknowledged = time.perf_counter()
            return True
        if answer is None:
            member.same_gpu = False
            return False
        self.wrong += 1
        mismatch = f"its weights of version {answer[0]} have the checksum {answer[1][:12]}, not {self.checksum[:12]}"
        if self.wrong > 1:
            raise UserError(
                f"{KEY}: the actor {member.name} is the second that received version {self.key} corrupted: {mismatch}"
            )
        raise UnusableActor(mismatch)


class WeightSender:
    """Sends the policy's weights to the actors of a pool."""

    def __init__(self, policy: Policy, ray: Any) -> None:
        self._policy, self._ray = policy, ray
        self.packer = WeightPacker(policy)
        self.gpu = gpu_uuid(policy.device)
        self._staging: list[Tensor] = []

    def version(self, pool: Pool, *, live: bool) -> SentWeights:
        """The current weights. If `live`, sending to the actors that are ready has begun when this returns."""
        sent = SentWeights(self._policy.version, live, self)
        ready = pool.ready() if live else []
        readers = [member for member in ready if sent.reads(member)]
        with phase("put the weights"):
            self._synchronize()
            pool.send_state(readers, sent)
            if live and len(readers) == len(ready):
                sent.checksum = self.packer.checksum_now()  # put into the store only if a later actor needs it
            else:
                self.put(sent, [member for member in ready if member not in readers])
        return sent

    def _synchronize(self) -> None:
        """Wait for the optimizer step on the device."""
        if self._policy.device.type == "cuda":
            torch.cuda.current_stream(self._policy.device).synchronize()

    def share(self, member: Member, version: int) -> Any:
        """Let an actor read the weights through CUDA IPC; None if no handles can be made."""
        handles: list[Handle] | None = None
        if not member.has_handles:
            try:
                _SHARED_MODELS.add(self._policy.model)
                handles = ipc_handles([entry.tensor for entry in self.packer.entries])
            except Exception:  # CUDA IPC can fail in many ways: fall back to the object store
                member.same_gpu = False
                return None
        member.has_handles, member.sent_parts = True, (None, 0)
        return member.handle.read.remote(version, handles)

    def release_handles(self, members: Sequence[Member]) -> None:
        """Called before the actors are killed: torch warns at exit about memory that is still shared."""
        with suppress(Exception):  # the actors or the cluster are already gone
            if pending := [member.handle.release_handles.remote() for member in members if member.has_handles]:
                self._ray.wait(pending, num_returns=len(pending), timeout=RELEASE_TIMEOUT_S)

    @torch.no_grad()
    def put(self, sent: SentWeights, ready: Sequence[Member]) -> None:
        """Put the weights into the object store. Ready actors load a part while the next one is put."""
        sent.parts.clear()
        prints: list[Tensor] = []
        copying: list[tuple[Tensor, Any]] = []
        for part in range(len(self.packer.parts) + STAGES):
            if part < len(self.packer.parts):
                flat = self.packer.packed(part)
                prints.append(fingerprint(flat))
                copying.append(self._to_host(flat, part))
            if part >= STAGES - 1 and copying:
                self._put(sent, *copying.pop(0), ready)
        sent.checksum = self.packer.checksum(prints)

    def _to_host(self, flat: Tensor, part: int) -> tuple[Tensor, Any]:
        """The bytes in host memory, and the CUDA event after which they are complete."""
        if flat.device.type != "cuda":
            return flat.cpu(), None
        if not self._staging:
            largest = max(self.packer.bytes_of(part) for part in range(len(self.packer.parts)))
            self._staging = [torch.empty(largest, dtype=torch.uint8, pin_memory=True) for _ in range(STAGES)]
        into = self._staging[part % STAGES][: len(flat)]
        into.copy_(flat, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return into, copied

    def _put(self, sent: SentWeights, part: Tensor, copied: Any, ready: Sequence[Member]) -> None:
        if copied is not None:
            copied.synchronize()
        sent.parts.append(self._ray.put(part.numpy()))
        for member in ready:
            if member.pending is None:
                sent.send_parts(member)
