"""Ray actors that judge, behind the interface of a judge's voice."""

from collections.abc import Sequence
from typing import Any

from vigneron.config import LocalJudgeConfig, PoolConfig
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, PoolSpec
from vigneron.remote.ray.pool import Member, Pool, PoolActor
from vigneron.remote.ray.sampler import actors_of
from vigneron.remote.ray.splitting import chosen
from vigneron.sources.client import Failure, Reply
from vigneron.sources.judge_questions import Turn
from vigneron.sources.local_judge import AT_ONCE, LocalVoice
from vigneron.sources.local_model import weights_name

KEY = "scale.judging"

Asked = tuple[LocalJudgeConfig, str]
"""A judge's config, and the key that errors name."""


class JudgingActor(PoolActor):
    def __init__(self, device: str) -> None:
        self._device = device
        self._voices: list[LocalVoice] = []

    def load(self, asked: Sequence[Asked]) -> list[str]:
        """What identifies the weights of each judge."""
        for config, where in asked[len(self._voices) :]:
            voice = LocalVoice(config, weights_name(config.model, where), self._device, where)
            voice.check()
            self._voices.append(voice)
        return [voice.source for voice in self._voices]

    def replies(self, number: int, turns: Sequence[Turn]) -> list[Reply | Failure]:
        return self._voices[number].replies(turns)


class JudgePool:
    """Judges that share one pool of actors. Each is loaded on every actor before it is used."""

    def __init__(self, cluster: Cluster, options: PoolConfig) -> None:
        self._options, self._asked, self._sources = options, list[Asked](), list[str]()
        self.device = "cuda" if options.gpus else "cpu"
        self.pool = Pool(cluster, PoolSpec(KEY, options), actors_of(cluster, JudgingActor, options, self.device))

    def voice(self, config: LocalJudgeConfig, source: str, where: str) -> "PooledVoice":
        self._asked.append((config, where))
        self._sources.append(source)
        return PooledVoice(self, len(self._asked) - 1, source)

    @property
    def actors(self) -> int:
        return self._options.actors

    @property
    def key(self) -> int:
        return len(self._asked)

    def send(self, member: Member) -> Any:
        return member.handle.load.remote(list(self._asked))

    def check(self, answer: list[str], member: Member) -> bool:
        for (config, where), here, there in zip(self._asked, self._sources, answer, strict=False):
            if here != there:
                raise UserError(f"{where}: the files of '{config.model}' differ on {member.name}: copy the same ones")
        return True

    def start(self) -> None:
        self.pool.start(self)

    def replies(self, number: int, turns: Sequence[Turn]) -> list[Reply | Failure]:
        size = min(AT_ONCE[self.device], -(-len(turns) // self.actors))
        parts = [range(at, min(at + size, len(turns))) for at in range(0, len(turns), size)]
        work = self.pool.work("replies", [(number, list(chosen(turns, part))) for part in parts], self)
        return [reply for replies in work.results for reply in replies]


class PooledVoice:
    """As many questions go together as the actors would be asked one by one."""

    notice: str | None = None

    def __init__(self, pool: JudgePool, number: int, source: str) -> None:
        self.source, self.at_once = source, pool.actors * AT_ONCE[pool.device]
        self._pool, self._number = pool, number

    def check(self) -> list[Reply]:
        self._pool.start()
        return []

    def stop(self) -> None: ...

    def replies(self, turns: Sequence[Turn]) -> list[Reply | Failure]:
        return self._pool.replies(self._number, turns)
