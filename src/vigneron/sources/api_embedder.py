"""Embedders over an API. What could not be embedded is a row of NaN: missing, never a zero vector, never kept."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.errors import UserError
from vigneron.sources.client import Client, Failure

LARGEST_BATCH = 256


class ApiEmbedder:
    """A `text-embedding-…` of OpenAI's, or `api:NAME` of any OpenAI-compatible endpoint."""

    def __init__(self, name: str, url: str | None) -> None:
        self._model = name.removeprefix("api:")
        if not self._model:
            raise UserError("reward.embedder: 'api:' names no model: as in `api:bge-small`")
        self._client = Client(url, "reward.embedder")
        self.name = f"api:{self._model}@{self._client.url}"
        self._dimensions: int | None = None

    def preflight(self) -> None:
        """One short text: what is wrong with the endpoint, its key or its model shows here."""
        found = self._client.embeddings(self._model, ["vine"], impatient=True)
        why = found.why if isinstance(found, Failure) else "answered with something else than numbers"
        vector = None if isinstance(found, Failure) else found[0]
        if vector is None or not _is_vector(vector, len(vector)):
            raise UserError(f"reward.embedder: '{self._model}' at '{self._client.url}' {why}")
        self._dimensions = len(vector)

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """An empty text is a genuine zero row, and is not sent."""
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
        """A batch that the endpoint refuses is halved, down to the text it refuses."""
        found = self._client.embeddings(self._model, texts)
        if not isinstance(found, Failure):
            return found
        if not found.refused or len(texts) == 1:
            return [None] * len(texts)
        middle = len(texts) // 2
        return self._vectors(texts[:middle]) + self._vectors(texts[middle:])


def _is_vector(vector: list[float], dimensions: int) -> bool:
    """Finite, of the right length, and not all zeros: that is how some servers say that they failed."""
    row = torch.tensor(vector, dtype=torch.float32)
    return len(vector) == dimensions and bool(row.isfinite().all()) and bool(row.any())
