"""An embedder that runs in a pool of Ray actors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.config import PoolConfig
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, PoolSpec
from vigneron.remote.ray.pool import Member, Pool, PoolActor
from vigneron.remote.ray.sampler import actors_of, chosen, pieces
from vigneron.sources.embedders import Embedder, SentenceEmbedder, load_embedder

KEY = "scale.embedding"
# The batch size of sentence-transformers.
SMALLEST_PIECE = 32


class EmbeddingActor(PoolActor):
    def __init__(self, device: str) -> None:
        self._device = device
        self._loaded: dict[str, Embedder] = {}

    def load(self, names: Sequence[str]) -> dict[str, str]:
        """Load the embedders and return what identifies the vectors of each."""
        for name in names:
            if name not in self._loaded:
                self._loaded[name] = load_embedder(name)
                if isinstance(embedder := self._loaded[name], SentenceEmbedder):
                    embedder.move(self._device)
        return {name: self._loaded[name].name for name in names}

    def embed(self, name: str, texts: Sequence[str]) -> np.ndarray:
        return self._loaded[name].embed(texts).numpy()

    def unknown_shares(self, name: str, texts: Sequence[str]) -> list[float]:
        """0 for every text if the embedder cannot say."""
        embedder = self._loaded[name]
        return embedder.unknown_shares(texts) if isinstance(embedder, SentenceEmbedder) else [0.0] * len(texts)


class EmbedderPool:
    """Embedders that share one pool of actors. Each is loaded on every actor before it is used."""

    def __init__(self, cluster: Cluster, options: PoolConfig) -> None:
        self._options, self._known = options, dict[str, str]()
        device = "cuda" if options.gpus else "cpu"
        self.pool = Pool(cluster, PoolSpec(KEY, options), actors_of(cluster, EmbeddingActor, options, device))
        self.key: tuple[str, ...] = ()

    def embedder(self, name: str) -> "PooledEmbedder":
        if name not in self.key:
            self.key = (*self.key, name)
        self.pool.start(self)
        return PooledEmbedder(self, name, self._known[name])

    def send(self, member: Member) -> Any:
        return member.handle.load.remote(self.key)

    def check(self, answer: dict[str, str], member: Member) -> bool:
        for name, identity in answer.items():
            if self._known.setdefault(name, identity) != identity:
                raise UserError(
                    f"{KEY}: the files of the embedder '{name}' differ on {member.name}: copy the same ones"
                )
        return True

    def embed(self, name: str, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        parts = pieces([1] * len(texts), self._options.actors, SMALLEST_PIECE)
        work = self.pool.work("embed", [(name, list(chosen(texts, part))) for part in parts], self)
        return torch.from_numpy(np.concatenate(work.results))

    def unknown_shares(self, name: str, texts: Sequence[str]) -> list[float]:
        (shares,) = self.pool.work("unknown_shares", [(name, list(texts))], self).results
        return shares


class PooledEmbedder:
    def __init__(self, pool: EmbedderPool, key: str, name: str) -> None:
        self.name = name
        self._pool, self._key = pool, key

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        return self._pool.embed(self._key, texts)

    def unknown_shares(self, texts: Sequence[str]) -> list[float]:
        return self._pool.unknown_shares(self._key, texts)
