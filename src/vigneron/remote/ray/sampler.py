"""A sampler that spreads requests over Ray actors. The samples are those that this process would draw."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vigneron.config import Config, RaySamplingConfig
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.weight_versions import PinnedWeights
from vigneron.remote.ray.cluster import Cluster, PoolSpec
from vigneron.remote.ray.pool import Member, Pool, Work
from vigneron.remote.ray.sampling_actor import ActorInfo, SamplingActor
from vigneron.remote.ray.splitting import chosen, sample_pieces
from vigneron.remote.ray.weight_packer import WeightPacker
from vigneron.remote.ray.weight_sync import KEY, SentWeights, WeightSender
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.timing import phase

# Samples per piece: smaller pieces take a device as long as these.
SMALLEST_PIECE = {"cuda": 512, "mps": 64, "cpu": 32}

Record = dict[str, Any]


class RaySampler:
    """Implements the Sampler protocol. `record` gets the step, version, checksum and actors of every request."""

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
        """Time of the last request by stage: put, load, sample, gather."""
        self._pinned = PinnedWeights()
        self._sender = WeightSender(policy, cluster.ray)
        self._base: str | None = None
        self._sent: SentWeights | None = None
        self._model = config.model.name
        self.pool = Pool(
            cluster,
            PoolSpec(KEY, self._options),
            make or actors_of(cluster, SamplingActor, self._options, config),
            timeout_s=self._options.timeout_s,
            on_setup=self._check_setup,
        )
        try:
            with phase("start the actors"):
                self.pool.start()
        except BaseException:  # close and re-raise
            self.pool.close()
            raise

    def sample(self, request: Request) -> Completions:
        """Sample from the policy's current weights, or from those this thread has pinned."""
        if self._pinned.weights is not None:
            return self._sampled(request, self._pinned.weights)
        return self._sampled(request, self._current_weights(live=True))

    def publish(self) -> SentWeights:
        """The policy's current weights, for asynchronous sampling. Actors load them on first use."""
        return self._current_weights(live=False)

    def use(self, weights: SentWeights | None) -> None:
        """Pin the weights that this thread samples from; None samples from the current ones."""
        self._pinned.weights = weights

    def _current_weights(self, *, live: bool) -> SentWeights:
        """`live`: the caller waits for the samples before it updates the policy. Otherwise a snapshot is needed."""
        sent = self._sent
        if sent is None or sent.key != self._policy.version or (sent.live and not live):
            began = time.perf_counter()
            sent = self._sent = self._sender.version(self.pool, live=live)
            self.seconds["put"] = time.perf_counter() - began
        return sent

    def _sampled(self, request: Request, sent: SentWeights) -> Completions:
        began = time.perf_counter()
        rows = sample_pieces(request.prompt_ids, self._options.actors, SMALLEST_PIECE[self._policy.device.type])
        parts = [(sent.key, self._policy.eos_ids, _part(request, each)) for each in rows]
        with phase("actors"):
            work = self.pool.work("sample", parts, sent)
        sampled = time.perf_counter()
        with phase("gather"):
            completions = blank_completions(request, self._policy)
            for each, done in zip(rows, work.results, strict=True):
                _copy_rows(completions, each, done)
        loaded = max(began, sent.acknowledged)
        self.seconds |= {"load": loaded - began, "sample": sampled - loaded, "gather": time.perf_counter() - sampled}
        read = sum(sent.reads(member) for member in self.pool.ready())
        self._record({**_recorded(request, sent, rows, work), "read": read})
        return completions

    def close(self) -> None:
        self._sender.release_handles(self.pool.members)
        self.pool.close()
        self._sent = None

    def _check_setup(self, info: ActorInfo, member: Member) -> None:
        if self._base is None:
            self._base = WeightPacker(self._policy, frozen=True).checksum_now()
        if info.base != self._base:
            raise UserError(
                f"{KEY}: the files of the model '{self._model}' differ on {member.name}: copy the same ones there"
            )
        self.notice = info.notice
        member.same_gpu = info.gpu is not None and info.gpu == self._sender.gpu


def actors_of(cluster: Cluster, kind: type, pool: Any, *arguments: Any) -> Callable[[], Any]:
    """A function that creates actors of a class. Ray must not restart them: a restarted actor has lost its state."""
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


def _copy_rows(into: Completions, rows: range, done: Completions) -> None:
    at, width = slice(rows.start, rows.stop), done.ids_BT.shape[1]
    into.ids_BT[at, :width] = done.ids_BT.to(into.ids_BT.device)
    into.behaviour_BT[at, :width] = done.behaviour_BT.to(into.behaviour_BT)
    into.lengths_B[at] = done.lengths_B.to(into.lengths_B)
    into.truncated_B[at] = done.truncated_B.to(into.truncated_B)
    into.prompt_hidden_BH[at] = done.prompt_hidden_BH.to(into.prompt_hidden_BH)


def _recorded(request: Request, sent: SentWeights, rows: list[range], work: Work) -> Record:
    """`step` as in the other logs: the step that trains on the samples, or after which they are evaluated."""
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
        "resampled": sum(len(rows[piece]) for piece in work.retried),
        "replaced": work.replaced,
    }
