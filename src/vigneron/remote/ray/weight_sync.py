"""Versions of the trained weights on their way to Ray actors, each of which acknowledges what it has by a checksum.

They go through Ray's object store, once for all actors. One on the GPU that trains reads them where they are instead.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.remote.ray.cuda_ipc import Handle, gpu_of, lent
from vigneron.remote.ray.pool import Member, Pool, Unfit
from vigneron.remote.ray.weight_packer import Parcel, fingerprint
from vigneron.timing import phase

KEY = "scale.sampling"
# Parts that are on their way out of the device at a time.
STAGES = 2
# What an actor may take to let go of what it was lent.
GIVE_BACK_S = 2.0


@dataclass(eq=False)
class SentWeights:
    """One version. `live`: the policy keeps it until whoever asked has its samples, so actors may read it there."""

    key: int
    live: bool
    sender: "Sender"
    checksum: str = ""
    parts: list[Any] = field(default_factory=list)
    wrong: int = 0
    acknowledged: float = 0.0
    """When an actor last said that it has it."""

    @property
    def version(self) -> int:
        return self.key

    def reads(self, member: Member) -> bool:
        """Whether it takes them from where they are."""
        return self.live and member.near

    def send(self, member: Member) -> None:
        """Those parts that it has not been sent yet."""
        key, count = member.sent
        for number in range(count if key == self.key else 0, len(self.parts)):
            member.handle.take.remote(number, self.parts[number])
        member.sent = (self.key, len(self.parts))

    def give(self, member: Member) -> Any:
        if self.reads(member) and (asked := self.sender.read_by(member, self.key)) is not None:
            return asked
        if len(self.parts) < len(self.sender.parcel.parts):
            self.sender.put(self, ())
        self.send(member)
        return member.handle.acknowledge.remote(self.key)

    def check(self, answer: tuple[int, str] | None, member: Member) -> bool:
        if answer == (self.key, self.checksum):
            self.acknowledged = time.perf_counter()
            return True
        if answer is None:
            member.near = False
            return False
        self.wrong += 1
        said = f"its weights of version {answer[0]} have the checksum {answer[1][:12]}, not {self.checksum[:12]}"
        if self.wrong > 1:
            raise UserError(
                f"{KEY}: the actor {member.name} is the second to which version {self.key} did not come whole: {said}"
            )
        raise Unfit(said)


class Sender:
    def __init__(self, policy: Policy, ray: Any) -> None:
        self._policy, self._ray = policy, ray
        self.parcel = Parcel(policy)
        self.gpu = gpu_of(policy.device)
        self._staging: list[Tensor] = []

    def version(self, pool: Pool, *, live: bool) -> SentWeights:
        """The weights as they are now. If `live`, actors that are ready have begun to take them when this returns."""
        sent = SentWeights(self._policy.version, live, self)
        ready = pool.ready() if live else []
        readers = [member for member in ready if sent.reads(member)]
        with phase("put the weights"):
            self._settle()
            pool.charge(readers, sent)
            if live and len(readers) == len(ready):
                sent.checksum = self.parcel.checksum_now()  # whoever comes later, and cannot read, has them put
            else:
                self.put(sent, [member for member in ready if member not in readers])
        return sent

    def _settle(self) -> None:
        """The update is done, not only asked for."""
        if self._policy.device.type == "cuda":
            torch.cuda.current_stream(self._policy.device).synchronize()

    def read_by(self, member: Member, version: int) -> Any:
        """It begins to read; None: there are no handles of our memory."""
        handles: list[Handle] | None = None
        if not member.lent:
            try:
                handles = lent([entry.tensor for entry in self.parcel.entries])
            except Exception:  # the edge to torch's own way of sharing: whatever fails there, the store is left
                member.near = False
                return None
        member.lent, member.sent = True, (None, 0)
        return member.handle.read.remote(version, handles)

    def take_back(self, members: Sequence[Member]) -> None:
        """Before the actors are killed: torch would say at our end that somebody still has our memory."""
        with suppress(Exception):  # they are dead already, or the cluster is
            if told := [member.handle.let_go.remote() for member in members if member.lent]:
                self._ray.wait(told, num_returns=len(told), timeout=GIVE_BACK_S)

    @torch.no_grad()
    def put(self, sent: SentWeights, ready: Sequence[Member]) -> None:
        """Into the object store. Those who are ready load a part while the next is put."""
        sent.parts.clear()
        prints: list[Tensor] = []
        leaving: list[tuple[Tensor, Any]] = []
        for part in range(len(self.parcel.parts) + STAGES):
            if part < len(self.parcel.parts):
                flat = self.parcel.packed(part)
                prints.append(fingerprint(flat))
                leaving.append(self._off_device(flat, part))
            if part >= STAGES - 1 and leaving:
                self._put(sent, *leaving.pop(0), ready)
        sent.checksum = self.parcel.checksum(prints)

    def _off_device(self, flat: Tensor, part: int) -> tuple[Tensor, Any]:
        """Bytes that Ray can take, and what to wait for before it does."""
        if flat.device.type != "cuda":
            return flat.cpu(), None
        if not self._staging:
            largest = max(self.parcel.bytes_of(part) for part in range(len(self.parcel.parts)))
            self._staging = [torch.empty(largest, dtype=torch.uint8, pin_memory=True) for _ in range(STAGES)]
        into = self._staging[part % STAGES][: len(flat)]
        into.copy_(flat, non_blocking=True)
        left = torch.cuda.Event()
        left.record()
        return into, left

    def _put(self, sent: SentWeights, part: Tensor, left: Any, ready: Sequence[Member]) -> None:
        if left is not None:
            left.synchronize()
        sent.parts.append(self._ray.put(part.numpy()))
        for member in ready:
            if member.asked is None:
                sent.send(member)
