"""Ray actors that embed, behind the interface of an embedder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.config import PoolConfig
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, Wanted
from vigneron.remote.ray.pool import Member, Pool, PoolActor
from vigneron.remote.ray.sampler import actors_of
from vigneron.remote.ray.splitting import chosen, pieces
from vigneron.sources.embedders import Embedder, SentenceEmbedder, load_embedder

KEY = "scale.embedding"
# What sentence-transformers puts through a model at a time.
SMALLEST = 32


class EmbeddingActor(PoolActor):
    def __init__(self, device: str) -> None:
        self._device = device
        self._loaded: dict[str, Embedder] = {}

    def load(self, names: Sequence[str]) -> dict[str, str]:
        """What identifies the vectors of each embedder."""
        for name in names:
            if name not in self._loaded:
                self._loaded[name] = load_embedder(name)
                if isinstance(embedder := self._loaded[name], SentenceEmbedder):
                    embedder.move(self._device)
        return {name: self._loaded[name].name for name in names}

    def embed(self, name: str, texts: Sequence[str]) -> np.ndarray:
        return self._loaded[name].embed(texts).numpy()


class EmbedderPool:
    """Several embedders share the actors. Each is loaded everywhere before it is used."""

    def __init__(self, cluster: Cluster, options: PoolConfig) -> None:
        self._options, self._known = options, dict[str, str]()
        device = "cuda" if options.gpus else "cpu"
        self.pool = Pool(cluster, Wanted(KEY, options), actors_of(cluster, EmbeddingActor, options, device))
        self.key: tuple[str, ...] = ()

    def embedder(self, name: str) -> "PooledEmbedder":
        if name not in self.key:
            self.key = (*self.key, name)
        self.pool.start(self)
        return PooledEmbedder(self, name, self._known[name])

    def give(self, member: Member) -> Any:
        return member.handle.load.remote(self.key)

    def check(self, answer: dict[str, str], member: Member) -> bool:
        for name, identity in answer.items():
            if self._known.setdefault(name, identity) != identity:
                raise UserError(f"{KEY}: the files of the embedder '{name}' are not the same on {member.name}")
        return True

    def embed(self, name: str, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        parts = pieces([1] * len(texts), self._options.actors, SMALLEST)
        work = self.pool.work("embed", [(name, list(chosen(texts, part))) for part in parts], self)
        return torch.from_numpy(np.concatenate(work.results))


class PooledEmbedder:
    def __init__(self, pool: EmbedderPool, asked: str, name: str) -> None:
        self.name = name
        self._pool, self._asked = pool, asked

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        return self._pool.embed(self._asked, texts)
