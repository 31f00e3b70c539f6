"""Every text is embedded once, and comes back with the same bits."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vigneron.sources.embedding_cache import CachedEmbedder


class Noisy:
    """Never gives a text the same vector twice, as if it depended on the texts beside it."""

    def __init__(self, name: str = "noisy", seed: int = 0) -> None:
        self.name = name
        self.asked: list[list[str]] = []
        self._generator = torch.Generator().manual_seed(seed)

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.asked.append(list(texts))
        return torch.randn(len(texts), 5, generator=self._generator)


def test_a_repeated_text_is_embedded_once_in_one_call_and_over_calls() -> None:
    inner = Noisy()
    cached = CachedEmbedder(inner)
    first = cached.embed(["b", "a", "b", "é", ""])
    assert inner.asked == [["b", "a", "é", ""]]
    assert first.shape == (5, 5)
    assert torch.equal(first[0], first[2])
    assert len({tuple(row) for row in first.tolist()}) == 4
    second = cached.embed(["c", "a", "é"])
    assert inner.asked[1:] == [["c"]]
    assert torch.equal(second[1:], first[[1, 3]])
    assert cached.name == "noisy"


def test_a_second_instance_on_the_same_file_computes_nothing_and_returns_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.sqlite"
    texts = ["purple", "", "naïve 'quoted\"; DROP TABLE vectors"]
    first = CachedEmbedder(Noisy(seed=1), path).embed(texts)
    inner = Noisy(seed=2)
    again = CachedEmbedder(inner, path).embed(texts[::-1])
    assert inner.asked == []
    assert torch.equal(again, first.flip(0))
    assert again.dtype == torch.float32
    again += 1  # a copy: what is handed out may be changed
    assert torch.equal(CachedEmbedder(inner, path).embed(texts), first)


def test_embedders_of_another_name_do_not_share_vectors(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.sqlite"
    first = CachedEmbedder(Noisy("one", seed=1), path).embed(["purple"])
    other = Noisy("two", seed=2)
    assert not torch.equal(CachedEmbedder(other, path).embed(["purple"]), first)
    assert other.asked == [["purple"]]
