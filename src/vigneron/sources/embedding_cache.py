"""A cache of embeddings beside the run.

The last bits of a vector may depend on the batch it was computed in. With the vectors on disk, a resumed run uses the
same bits as an uninterrupted one.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.config import is_api_embedder
from vigneron.sources.embedders import Embedder, SentenceEmbedder, load_embedder
from vigneron.sources.placement import IN_PROCESS, ModelPlacement

# Vectors that are also held in memory.
MEMORY_ENTRIES = 50_000


class CachedEmbedder:
    """An embedder with a SQLite cache; in memory if there is no path."""

    def __init__(self, embedder: Embedder, path: Path | None = None) -> None:
        self.name = embedder.name
        self._embedder = embedder
        self._memory: OrderedDict[str, np.ndarray] = OrderedDict()
        # Rewards may be computed in the async rollout thread, but never in two threads at a time.
        self._store = sqlite3.connect(path if path is not None else ":memory:", check_same_thread=False)
        self._store.execute("PRAGMA journal_mode = WAL")
        self._store.execute("PRAGMA synchronous = NORMAL")
        self._store.execute(
            "CREATE TABLE IF NOT EXISTS vectors"
            " (embedder TEXT, text TEXT, vector BLOB NOT NULL, PRIMARY KEY (embedder, text)) WITHOUT ROWID"
        )

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        distinct = list(dict.fromkeys(texts))
        known = {text: vector for text in distinct if (vector := self._known(text)) is not None}
        missing = [text for text in distinct if text not in known]
        if missing:
            fresh = self._embedder.embed(missing).numpy().astype(np.float32)
            known |= dict(zip(missing, fresh, strict=True))
            with self._store:
                self._store.executemany(
                    "INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)",
                    # Failures (NaN) are not cached, so that they are retried.
                    [(self.name, text, known[text].tobytes()) for text in missing if np.isfinite(known[text]).all()],
                )
            self._remember({text: known[text] for text in missing if np.isfinite(known[text]).all()})
        return torch.from_numpy(np.stack([known[text] for text in texts]))

    def share_of_unknown(self, texts: Sequence[str]) -> float:
        """The share of texts with tokens that the embedder does not know, as far as it can say."""
        shares_of = getattr(self._embedder, "unknown_shares", None)
        return 0.0 if shares_of is None or not texts else fmean(share > 0 for share in shares_of(texts))

    def _known(self, text: str) -> np.ndarray | None:
        """From memory, else from the file."""
        vector = self._memory.get(text)
        if vector is None and (vector := self._read(text)) is not None:
            self._remember({text: vector})
        return vector

    def _remember(self, vectors: dict[str, np.ndarray]) -> None:
        self._memory.update(vectors)
        while len(self._memory) > MEMORY_ENTRIES:
            self._memory.popitem(last=False)

    def _read(self, text: str) -> np.ndarray | None:
        row = self._store.execute(
            "SELECT vector FROM vectors WHERE embedder = ? AND text = ?", (self.name, text)
        ).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32)


def cached_embedder(
    name: str, *, url: str | None = None, cache: Path | None, device: str, placement: ModelPlacement = IN_PROCESS
) -> CachedEmbedder:
    """The embedder of that name, loaded, with its cache."""
    from vigneron.sources.api_embedder import ApiEmbedder

    if placement.embedder is not None and not is_api_embedder(name):
        return CachedEmbedder(placement.embedder(name), cache)
    embedder = load_embedder(name, url)
    if isinstance(embedder, SentenceEmbedder):
        embedder.move(device)
    if isinstance(embedder, ApiEmbedder) and cache is not None:
        embedder.preflight()
    return CachedEmbedder(embedder, cache)
