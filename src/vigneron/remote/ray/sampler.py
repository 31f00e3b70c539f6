"""A sampler that spreads requests over Ray actors. What is sampled is what would be sampled here."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vigneron.config import Config, RaySamplingConfig
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.weight_versions import Pinned
from vigneron.remote.ray.cluster import Cluster, Wanted
from vigneron.remote.ray.pool import Member, Pool, Work
from vigneron.remote.ray.sampling_actor import Begun, SamplingActor
from vigneron.remote.ray.splitting import chosen, sample_pieces
from vigneron.remote.ray.weight_packer import Parcel
from vigneron.remote.ray.weight_sync import KEY, Sender, SentWeights
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.timing import phase

# Smaller pieces would cost a GPU as much time as larger ones.
SMALLEST = {"cuda": 512, "mps": 64, "cpu": 32}

Record = dict[str, Any]


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
        self._policy, self._record = policy, record
        self._options = config.scale.sampling
        self.notice: str | None = None
        self.seconds: dict[str, float] = {}
        """Where the last request's time went: put, load, sample, gather."""
        self._pinned = Pinned()
        self._sender = Sender(policy, cluster.ray)
        self._base: str | None = None
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
        return self._sampled(request, self._as_they_are(live=True))

    def publish(self) -> SentWeights:
        """For a thread that samples ahead: the policy's weights as they are now. Actors get them when they are used."""
        return self._as_they_are(live=False)

    def use(self, weights: SentWeights | None) -> None:
        """What this thread samples from; None: the policy as it is at each call."""
        self._pinned.weights = weights

    def _as_they_are(self, *, live: bool) -> SentWeights:
        """`live`: for who waits for the samples before the policy changes. Others need them to stay as they are."""
        sent = self._sent
        if sent is None or sent.key != self._policy.version or (sent.live and not live):
            began = time.perf_counter()
            sent = self._sent = self._sender.version(self.pool, live=live)
            self.seconds["put"] = time.perf_counter() - began
        return sent

    def _sampled(self, request: Request, sent: SentWeights) -> Completions:
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
        loaded = max(began, sent.acknowledged)
        self.seconds |= {"load": loaded - began, "sample": sampled - loaded, "gather": time.perf_counter() - sampled}
        read = sum(sent.reads(member) for member in self.pool.ready())
        self._record({**_recorded(request, sent, rows, work), "read": read})
        return whole

    def close(self) -> None:
        self._sender.take_back(self.pool.members)
        self.pool.close()
        self._sent = None

    def _check_begun(self, begun: Begun, member: Member) -> None:
        if self._base is None:
            self._base = Parcel(self._policy, frozen=True).checksum_now()
        if begun.base != self._base:
            raise UserError(f"{KEY}: the files of the model '{self._model}' are not the ones here on {member.name}")
        self.notice = begun.notice
        member.near = begun.gpu is not None and begun.gpu == self._sender.gpu


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
