"""Embedders over an API: the bundled MiniLM behind a real server, and servers that fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.minimal_recipe import check, line_of
from support.servers import Seen, Sent, Server, chat, port_of_nobody, refusal, serving, vectors
from vigneron.errors import UserError
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import exact_reward
from vigneron.sources import client as client_module
from vigneron.sources.embedders import load_embedder
from vigneron.sources.embedding_cache import CachedEmbedder

KEY = "sk-secret-4f9a1c77e2"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


@pytest.fixture(scope="module")
def minilm() -> Iterator[Server]:
    embedder = load_embedder("minilm")
    with serving(lambda seen, n: vectors(embedder.embed(seen.body["input"]).tolist())) as server:
        yield server


def sent_texts(server: Server) -> list[list[str]]:
    return [seen.body["input"] for seen in server.seen]


def test_vectors_are_the_servers_own_and_an_empty_text_is_zero_and_not_sent(minilm: Server) -> None:
    texts = ["purple", "", "a red cat", " \n", "naïve"]
    embedder = load_embedder("api:minilm", minilm.url)
    assert embedder.name == f"api:minilm@{minilm.url}"
    got = embedder.embed(texts)
    torch.testing.assert_close(got, load_embedder("minilm").embed(texts), atol=1e-5, rtol=0)
    assert not got[[1, 3]].any()
    assert sent_texts(minilm)[-1] == ["purple", "a red cat", "naïve"]
    body = minilm.seen[-1].body
    assert (body["model"], body["encoding_format"]) == ("minilm", "float")
    assert minilm.seen[-1].headers["authorization"] == f"Bearer {KEY}"


def test_the_environments_address_and_openais_names(minilm: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", minilm.url)
    embedder = load_embedder("text-embedding-3-small")
    assert embedder.name == f"api:text-embedding-3-small@{minilm.url}"
    assert embedder.embed(["cat"]).shape == (1, 384)


def counting(seen: Seen, before: int) -> Sent:
    """Each text's vector holds its length."""
    return vectors([[float(len(text)), 1.0] for text in seen.body["input"]])


def test_batches_are_bounded_and_in_order() -> None:
    texts = [f"{i}" + "x" * (i % 7) for i in range(600)]
    with serving(counting) as server:
        got = load_embedder("api:m", server.url).embed(texts)
    assert [int(n) for n in got[:, 0]] == [len(text) for text in texts]
    assert [len(batch) for batch in sent_texts(server)] == [1, 256, 256, 88]


def test_vectors_go_by_their_index() -> None:
    def reversed_order(seen: Seen, before: int) -> Sent:
        count = len(seen.body["input"])
        data = [f'{{"index": {i}, "embedding": [{i}, 1]}}' for i in reversed(range(count))]
        return Sent(body=f'{{"data": [{", ".join(data)}]}}')

    with serving(reversed_order) as server:
        assert load_embedder("api:m", server.url).embed(["a", "b", "c"])[:, 0].tolist() == [0, 1, 2]


BAD_ROWS: dict[str, Any] = {
    "NaN": [float("nan"), 1.0],
    "infinite": [float("inf"), 1.0],
    "null": None,
    "null inside": [None, 1.0],
    "zeros": [0.0, 0.0],
    "too long": [1.0, 2.0, 3.0],
    "too short": [1.0],
    "texts": ["a", "b"],
    "empty": [],
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_missing_and_its_neighbours_are_not(bad: Any) -> None:
    with serving(
        lambda seen, n: vectors([bad if text == "bad" else [1.0, 2.0] for text in seen.body["input"]])
    ) as server:
        got = load_embedder("api:m", server.url).embed(["good", "bad", "", "fine"])
    assert got[[0, 3]].tolist() == [[1.0, 2.0]] * 2
    assert got[1].isnan().all()
    assert got[2].tolist() == [0.0, 0.0]


def test_a_failure_is_missing_is_not_kept_and_is_tried_again(tmp_path: Path) -> None:
    broken = True

    def script(seen: Seen, before: int) -> Sent:
        if broken and before > 0:
            return [refusal(500), Sent(body="{}"), vectors([[1.0, 2.0]])][before % 3]
        return counting(seen, before)

    with serving(script) as server:
        cached = CachedEmbedder(load_embedder("api:m", server.url), tmp_path / "embeddings.sqlite")
        assert cached.embed(["cat", "", "horse"]).isnan().any(1).tolist() == [True, False, True]
        broken = False
        assert cached.embed(["cat", "", "horse"])[:, 0].tolist() == [3, 0, 5]
        asked = len(server.seen)
        again = CachedEmbedder(load_embedder("api:m", server.url), tmp_path / "embeddings.sqlite")
        assert again.embed(["horse", "cat", ""])[:, 0].tolist() == [5, 3, 0]
        assert len(server.seen) == asked
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_text_that_is_refused_is_missing_alone() -> None:
    def script(seen: Seen, before: int) -> Sent:
        return refusal(400, "too long") if any(len(t) > 50 for t in seen.body["input"]) else counting(seen, before)

    texts = [*"abcdefgh", "x" * 60, *"ijk"]
    with serving(script) as server:
        got = load_embedder("api:m", server.url).embed(texts)
    assert np.flatnonzero(got.isnan().any(1).numpy()).tolist() == [8]
    assert len(server.seen) < 12


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (refusal(401), "answered 401: the key in OPENAI_API_KEY is not accepted"),
        (refusal(404, "no m"), "answered 404: it has no model 'm'"),
        (refusal(400, "what?"), "'m' at '.*' answered 400"),
        (vectors([[0.0, 0.0]]), "'m' at '.*' did not return a finite non-zero vector"),
        (Sent(200, "<html>"), "'m' at '.*' returned a malformed response"),
        (chat("hi"), "'m' at '.*' returned a malformed response"),
    ],
)
def test_an_endpoint_that_cannot_embed_fails_when_a_runs_reward_is_built(tmp_path: Path, sent: Sent, line: str) -> None:
    with serving(lambda seen, n: sent) as server:
        config = check(reward={"kind": "semantic", "embedder": "api:m", "url": server.url}).reward
        build_reward(config, exact_reward)  # as `validate` does: nothing is asked
        assert server.seen == []
        with pytest.raises(UserError, match=f"^reward.embedder: .*{line}"):
            build_reward(config, exact_reward, cache=tmp_path / "embeddings.sqlite")


def test_nobody_there_is_one_line() -> None:
    embedder = load_embedder("api:m", f"http://127.0.0.1:{port_of_nobody()}/v1")
    with pytest.raises(UserError, match=r"^reward\.embedder: 'm' at '.*' cannot be reached \(Connection refused\)"):
        embedder.embed(["a"])


def test_names_and_addresses_that_are_none() -> None:
    def reward(**keys: Any) -> dict[str, Any]:
        return {"kind": "semantic", **keys}

    assert "`url` has no effect with `embedder: minilm`" in line_of(reward=reward(embedder="minilm", url="http://a/v1"))
    for url in (f"http://me:{KEY}@there/v1", f"https://there/v1?key={KEY}"):
        line = line_of(reward=reward(embedder="api:m", url=url))
        assert "reward.url: should have no user, password or query" in line
        assert KEY not in line
        line = line_of(parent={"kind": "endpoint", "model": "m", "url": url})
        assert "parent.url: should have no user, password or query" in line
        assert KEY not in line
    assert "should be a URL such as" in line_of(parent={"kind": "endpoint", "model": "m", "url": "there:8000"})
    with pytest.raises(UserError, match="'api:' has no model name"):
        load_embedder("api:", "http://127.0.0.1:1/v1")
    with pytest.raises(UserError, match="unknown embedder"):
        load_embedder("text-embeding-3")
