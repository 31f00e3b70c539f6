"""A sampler that spreads requests over Ray actors. What is sampled is what would be sampled here."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vigneron.config import Config, RaySamplingConfig
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.rollout.request import Completions, Request, blank_completions
from vigneron.scale.cluster import Cluster, Wanted
from vigneron.scale.pool import Member, Pool, Unfit, Work
from vigneron.scale.sampling_actor import Begun, SamplingActor
from vigneron.scale.splitting import chosen, sample_pieces
from vigneron.scale.versions import Pinned
from vigneron.scale.weights import Parcel, fingerprint
from vigneron.timing import phase

KEY = "scale.sampling"
# Smaller pieces would cost a GPU as much time as larger ones.
SMALLEST = {"cuda": 512, "mps": 64, "cpu": 32}
# Parts that are on their way out of the device at a time.
STAGES = 2

Record = dict[str, Any]


@dataclass
class SentWeights:
    """A version of the weights in Ray's object store. An actor acknowledges it by the checksum of what it loaded."""

    key: int
    checksum: str = ""
    parts: list[Any] = field(default_factory=list)
    wrong: int = 0
    seconds: float = 0.0
    """The longest that one took, from the last part to its acknowledgement."""

    @property
    def version(self) -> int:
        return self.key

    def send(self, member: Member) -> None:
        """Those parts that it has not been sent yet."""
        key, count = member.sent
        for number in range(count if key == self.key else 0, len(self.parts)):
            member.handle.take.remote(number, self.parts[number])
        member.sent = (self.key, len(self.parts))

    def give(self, member: Member) -> Any:
        self.send(member)
        return member.handle.acknowledge.remote(self.key)

    def check(self, answer: tuple[int, str], member: Member) -> None:
        self.seconds = max(self.seconds, time.monotonic() - member.since)
        if answer == (self.key, self.checksum):
            return
        self.wrong += 1
        said = f"its weights of version {answer[0]} have the checksum {answer[1][:12]}, not {self.checksum[:12]}"
        if self.wrong > 1:
            raise UserError(
                f"{KEY}: the actor {member.name} is the second to which version {self.key} did not come whole: {said}"
            )
        raise Unfit(said)


class RaySampler:
    """Fills the Sampler protocol. `record` is told of every request: step, version, checksum, and who sampled."""

    exact = True

    def __init__(
        self,
        policy: Policy,
        config: Config,
        cluster: Cluster,
        record: Callable[[Record], None] = lambda record: None,
        make: Callable[[], Any] | None = None,
    ) -> None:
        assert isinstance(config.scale.sampling, RaySamplingConfig)
        self._policy, self._ray, self._record = policy, cluster.ray, record
        self._options = config.scale.sampling
        self.notice: str | None = None
        self.seconds: dict[str, float] = {}
        """Where the last request's time went: put, load, sample, gather."""
        self._pinned = Pinned()
        self._parcel = Parcel(policy)
        self._base: str | None = None
        self._staging: list[Tensor] = []
        self._sent: SentWeights | None = None
        self._model = config.model.name
        self.pool = Pool(
            cluster,
            Wanted(KEY, self._options),
            make or actors_of(cluster, SamplingActor, self._options, config),
            timeout_s=self._options.timeout_s,
            begun=self._check_begun,
        )
        try:
            with phase("start the actors"):
                self.pool.start()
        except BaseException:  # whatever it was: raised on
            self.pool.close()
            raise

    def sample(self, request: Request) -> Completions:
        """By the policy as it is now, or by what this thread was told to use."""
        if self._pinned.weights is not None:
            return self._sampled(request, self._pinned.weights)
        return self._sampled(request, self._as_they_are(send=True))

    def publish(self) -> SentWeights:
        """For a thread that samples ahead: the policy's weights as they are now. Actors get them when they are used."""
        return self._as_they_are(send=False)

    def use(self, weights: SentWeights | None) -> None:
        """What this thread samples from; None: the policy as it is at each call."""
        self._pinned.weights = weights

    def _as_they_are(self, *, send: bool) -> SentWeights:
        if self._sent is None or self._sent.key != self._policy.version:
            self._sent = self._put_weights(send=send)
        return self._sent

    @torch.no_grad()
    def _put_weights(self, *, send: bool) -> SentWeights:
        """Put once. `send`: actors that are ready load a part while the next is put."""
        began = time.perf_counter()
        with phase("put the weights"):
            sent, prints = SentWeights(self._policy.version), []
            leaving: list[tuple[Tensor, Any]] = []
            for part in range(len(self._parcel.parts) + STAGES):
                if part < len(self._parcel.parts):
                    flat = self._parcel.packed(part)
                    prints.append(fingerprint(flat))
                    leaving.append(self._off_device(flat, part))
                if part >= STAGES - 1 and leaving:
                    self._put(sent, *leaving.pop(0), send=send)
            sent.checksum = self._parcel.checksum(prints)
        self.seconds["put"] = time.perf_counter() - began
        return sent

    def _sampled(self, request: Request, sent: SentWeights) -> Completions:
        sent.seconds = 0.0
        began = time.perf_counter()
        rows = sample_pieces(request.prompt_ids, self._options.actors, SMALLEST[self._policy.device.type])
        parts = [(sent.key, self._policy.eos_ids, _part(request, each)) for each in rows]
        with phase("actors"):
            work = self.pool.work("sample", parts, sent)
        sampled = time.perf_counter()
        with phase("gather"):
            whole = blank_completions(request, self._policy)
            for each, done in zip(rows, work.results, strict=True):
                _put_in(whole, each, done)
        self.seconds |= {"load": sent.seconds, "sample": sampled - began - sent.seconds}
        self.seconds["gather"] = time.perf_counter() - sampled
        self._record(_recorded(request, sent, rows, work))
        return whole

    def close(self) -> None:
        self.pool.close()
        self._sent = None

    def _off_device(self, flat: Tensor, part: int) -> tuple[Tensor, Any]:
        """Bytes that Ray can take, and what to wait for before it does."""
        if flat.device.type != "cuda":
            return flat.cpu(), None
        if not self._staging:
            largest = max(self._parcel.bytes_of(part) for part in range(len(self._parcel.parts)))
            self._staging = [torch.empty(largest, dtype=torch.uint8, pin_memory=True) for _ in range(STAGES)]
        into = self._staging[part % STAGES][: len(flat)]
        into.copy_(flat, non_blocking=True)
        left = torch.cuda.Event()
        left.record()
        return into, left

    def _put(self, sent: SentWeights, part: Tensor, left: Any, *, send: bool) -> None:
        if left is not None:
            left.synchronize()
        sent.parts.append(self._ray.put(part.numpy()))
        for member in self.pool.ready() if send else ():
            if member.asked is None:
                sent.send(member)

    def _check_begun(self, begun: Begun, name: str) -> None:
        if self._base is None:
            self._base = Parcel(self._policy, frozen=True).checksum_now()
        if begun.base != self._base:
            raise UserError(f"{KEY}: the files of the model '{self._model}' are not the ones here on {name}")
        self.notice = begun.notice


def actors_of(cluster: Cluster, kind: type, pool: Any, *arguments: Any) -> Callable[[], Any]:
    """Makes actors of a kind. Ray restarts none of them: an actor that was restarted would have lost its state."""
    made = cluster.ray.remote(kind).options(
        num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
    )
    return lambda: made.remote(*arguments)


def _part(request: Request, rows: range) -> Request:
    return replace(
        request,
        prompt_ids=[tuple(ids) for ids in chosen(request.prompt_ids, rows)],
        sample_ids=list(chosen(request.sample_ids, rows)),
    )


def _put_in(whole: Completions, rows: range, done: Completions) -> None:
    at, width = slice(rows.start, rows.stop), done.ids_BT.shape[1]
    whole.ids_BT[at, :width] = done.ids_BT.to(whole.ids_BT.device)
    whole.behaviour_BT[at, :width] = done.behaviour_BT.to(whole.behaviour_BT)
    whole.lengths_B[at] = done.lengths_B.to(whole.lengths_B)
    whole.truncated_B[at] = done.truncated_B.to(whole.truncated_B)
    whole.prompt_hidden_BH[at] = done.prompt_hidden_BH.to(whole.prompt_hidden_BH)


def _recorded(request: Request, sent: SentWeights, rows: list[range], work: Work) -> Record:
    """`step` as in the other logs: the one that trains on these samples, or after which they were looked at."""
    counts: Counter[str] = Counter()
    for each, name in zip(rows, work.by, strict=True):
        counts[name] += len(each)
    return {
        "step": request.step + 1 if request.sampling is not None else sent.key,
        "greedy": request.sampling is None,
        "version": sent.key,
        "checksum": sent.checksum,
        "samples": len(request.prompt_ids),
        "actors": dict(sorted(counts.items())),
        "resampled": sum(len(rows[piece]) for piece in work.again),
        "replaced": work.replaced,
    }
