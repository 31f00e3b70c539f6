"""Embedders over an API. A text that fails gets a row of NaN (missing), never a zero vector, and is not cached."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.errors import UserError
from vigneron.sources.client import Client, Failure

LARGEST_BATCH = 256


class ApiEmbedder:
    """OpenAI's `text-embedding-…`, or `api:NAME` at any OpenAI-compatible endpoint."""

    def __init__(self, name: str, url: str | None) -> None:
        self._model = name.removeprefix("api:")
        if not self._model:
            raise UserError("reward.embedder: 'api:' has no model name (example: `api:bge-small`)")
        self._client = Client(url, "reward.embedder")
        self.name = f"api:{self._model}@{self._client.url}"
        self._dimensions: int | None = None

    def preflight(self) -> None:
        """Embed one short text, to check the endpoint, the key and the model."""
        vectors = self._client.embeddings(self._model, ["vine"], fail_fast=True)
        why = vectors.why if isinstance(vectors, Failure) else "did not return a finite non-zero vector"
        vector = None if isinstance(vectors, Failure) else vectors[0]
        if vector is None or not _is_vector(vector, len(vector)):
            raise UserError(f"reward.embedder: '{self._model}' at '{self._client.url}' {why}")
        self._dimensions = len(vector)

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """An empty text gives a zero row and is not sent."""
        if self._dimensions is None:
            self.preflight()
        assert self._dimensions is not None
        vectors_ND = torch.zeros(len(texts), self._dimensions)
        sent = [i for i, text in enumerate(texts) if text.strip()]
        for start in range(0, len(sent), LARGEST_BATCH):
            batch = sent[start : start + LARGEST_BATCH]
            for i, vector in zip(batch, self._vectors([texts[i] for i in batch]), strict=True):
                good = vector is not None and _is_vector(vector, self._dimensions)
                vectors_ND[i] = torch.tensor(vector) if good else torch.nan
        return vectors_ND

    def _vectors(self, texts: list[str]) -> list[list[float] | None]:
        """A refused batch is halved until the refused texts are alone."""
        vectors = self._client.embeddings(self._model, texts)
        if not isinstance(vectors, Failure):
            return vectors
        if not vectors.refused or len(texts) == 1:
            return [None] * len(texts)
        middle = len(texts) // 2
        return self._vectors(texts[:middle]) + self._vectors(texts[middle:])


def _is_vector(vector: list[float], dimensions: int) -> bool:
    """Finite, of the right length, and not all zeros, which some servers return on failure."""
    row = torch.tensor(vector, dtype=torch.float32)
    return len(vector) == dimensions and bool(row.isfinite().all()) and bool(row.any())
