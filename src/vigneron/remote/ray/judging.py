"""Ray actors that judge, behind the interface `JudgeBackend`."""

from collections.abc import Sequence
from typing import Any

from vigneron.config import LocalJudgeConfig, PoolConfig
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, PoolSpec
from vigneron.remote.ray.pool import Member, Pool, PoolActor
from vigneron.remote.ray.sampler import actors_of, chosen
from vigneron.sources.client import ChatReply, Failure
from vigneron.sources.judge_client import JudgeCall
from vigneron.sources.local_judge import BATCH_SIZE, LocalBackend
from vigneron.sources.local_model import weights_name

KEY = "scale.judging"

JudgeSpec = tuple[LocalJudgeConfig, str]
"""A judge's config, and the key that errors name."""


class JudgingActor(PoolActor):
    def __init__(self, device: str) -> None:
        self._device = device
        self._backends: list[LocalBackend] = []

    def load(self, specs: Sequence[JudgeSpec]) -> list[str]:
        """What identifies the weights of each judge."""
        for config, where in specs[len(self._backends) :]:
            backend = LocalBackend(config, weights_name(config.model, where), self._device, where)
            backend.check()
            self._backends.append(backend)
        return [backend.source for backend in self._backends]

    def replies(self, number: int, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        return self._backends[number].replies(calls)


class JudgePool:
    """Judges that share one pool of actors. Each is loaded on every actor before it is used."""

    def __init__(self, cluster: Cluster, options: PoolConfig) -> None:
        self._options, self._specs, self._sources = options, list[JudgeSpec](), list[str]()
        self.device = "cuda" if options.gpus else "cpu"
        self.pool = Pool(cluster, PoolSpec(KEY, options), actors_of(cluster, JudgingActor, options, self.device))

    def backend(self, config: LocalJudgeConfig, source: str, where: str) -> "PooledBackend":
        self._specs.append((config, where))
        self._sources.append(source)
        return PooledBackend(self, len(self._specs) - 1, source)

    @property
    def actors(self) -> int:
        return self._options.actors

    @property
    def key(self) -> int:
        return len(self._specs)

    def send(self, member: Member) -> Any:
        return member.handle.load.remote(list(self._specs))

    def check(self, answer: list[str], member: Member) -> bool:
        for (config, where), here, there in zip(self._specs, self._sources, answer, strict=False):
            if here != there:
                raise UserError(f"{where}: the files of '{config.model}' differ on {member.name}: copy the same ones")
        return True

    def start(self) -> None:
        self.pool.start(self)

    def replies(self, number: int, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        size = min(BATCH_SIZE[self.device], -(-len(calls) // self.actors))
        parts = [range(at, min(at + size, len(calls))) for at in range(0, len(calls), size)]
        work = self.pool.work("replies", [(number, list(chosen(calls, part))) for part in parts], self)
        return [reply for replies in work.results for reply in replies]


class PooledBackend:
    """A batch is what all actors together would take."""

    notice: str | None = None

    def __init__(self, pool: JudgePool, number: int, source: str) -> None:
        self.source, self.batch_size = source, pool.actors * BATCH_SIZE[pool.device]
        self._pool, self._number = pool, number

    def check(self) -> list[ChatReply]:
        self._pool.start()
        return []

    def stop(self) -> None: ...

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        return self._pool.replies(self._number, calls)
