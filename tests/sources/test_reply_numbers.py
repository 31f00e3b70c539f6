"""Numbers that no float holds, anywhere in an endpoint's reply: the value is missing, and nothing is raised."""

import contextlib
import json
import math
import tracemalloc
from typing import Any

import pytest

from support.hostile_server import REPLIES, chat_json, hostile_server, score_json, whole
from support.servers import vectors
from vigneron.remote.vllm.completion import Ends, parsed_version
from vigneron.remote.vllm.server_api import _completion
from vigneron.sources import client
from vigneron.sources.client import ChatReply, Client, parse_reply, parse_response, parse_vectors, retry_after
from vigneron.sources.reply_parsing import UnparsableReply, parse_answer, parse_digits, parse_score

HUGE = ["1" + "0" * 350, "-1" + "0" * 350, "1" + "0" * 5000, "1e999", "-1e999", "NaN", "Infinity", "true", '"7"', "[1]"]
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("number", HUGE)
def test_a_count_that_cannot_be_one_is_missing(number: str) -> None:
    body = chat_json("hi", f'{{"prompt_tokens": {number}, "completion_tokens": 3}}')
    assert parse_reply(parse_response(body.encode())) == ChatReply("hi", False, 0, 3)
    elsewhere = chat_json("hi").replace('"index": 0', f'"index": {number}')
    assert parse_reply(parse_response(elsewhere.encode())) == ChatReply("hi", False, 7, 3)


@pytest.mark.parametrize("way", [way for way in REPLIES if way.startswith("counts")])
def test_a_reply_with_such_a_count_is_a_reply(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-4f9a1c77e2")
    with hostile_server(REPLIES[way]) as server:
        reply = Client(server.url, "judge", retries=0).chat("grape", HELLO, max_tokens=9)
    assert isinstance(reply, ChatReply)
    assert (reply.text, reply.tokens_in, reply.tokens_out) == (score_json(), 0, 0)


@pytest.mark.parametrize("number", ["1" + "0" * 350, "1" + "0" * 5000, "1e999", "NaN", "true", "null", '"x"'])
def test_a_log_prob_that_cannot_be_one_is_missing(number: str) -> None:
    listed = f'[{{"token": "hi", "logprob": {number}, "bytes": null}}]'
    body = chat_json("hi").replace('"finish_reason"', f'"logprobs": {{"content": {listed}}}, "finish_reason"')
    assert parse_reply(parse_response(body.encode())).token_logprobs == ()


def test_log_probs_of_minus_infinity_and_bytes_that_are_a_number() -> None:
    def reply(logprob: Any, token_bytes: Any) -> ChatReply:
        listed = [{"token": "hi", "logprob": logprob, "bytes": token_bytes}]
        return parse_reply({"choices": [{"message": {"content": "hi"}, "logprobs": {"content": listed}}]})

    assert reply(-math.inf, [104, 105]).token_logprobs == ((b"hi", -math.inf),)
    assert reply(-1.0, 10**12).token_logprobs == ()
    assert reply(-1.0, [104, 1000]).token_logprobs == ()


@pytest.mark.parametrize("number", ["1" + "0" * 350, "1" + "0" * 5000, "1e999", "NaN", "null"])
def test_a_vector_with_such_a_number_is_missing(number: str) -> None:
    body = vectors([[1.0, 2.0], [1.0, 777]]).body.replace("777", number)
    assert parse_vectors(parse_response(body.encode()), 2) == [[1.0, 2.0], None]


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 5000, "1e999", "-1e999", "NaN", "Infinity"])
def test_a_score_that_is_none(number: str) -> None:
    with pytest.raises(UnparsableReply):
        parse_score(score_json(number))
    with pytest.raises(UnparsableReply):
        parse_score(score_json("1", number))
    with pytest.raises(UnparsableReply, match="from 1 to 10"):
        parse_digits(f"[{', '.join([number] * 10)}]")


def test_digits_that_are_no_list_of_ten_probabilities() -> None:
    for text in ("[" * 100_000, json.dumps([-1.0] + [1.0] * 9), "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]", '{"a": 1}', "7"):
        with pytest.raises(UnparsableReply, match="from 1 to 10"):
            parse_digits(text)
    assert parse_digits(json.dumps([0.0] * 9 + [1.0])).score == 1.0


def test_a_value_nested_as_deeply_as_the_parser_allows() -> None:
    """JSON is read a few levels deeper than it is written: no depth raises anything else."""
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        for text in (score_json(nested), score_json(reasoning=nested), f'{{"OUTPUT": {nested}}}'):
            with pytest.raises(UnparsableReply):
                parse_score(text) if "score" in text else parse_answer(text, "json")


@pytest.mark.parametrize("text", ["1e400", "-1e400", "9" * 5000, "nan", "Wed, 21 Oct 999999999999 07:28:00 GMT"])
def test_a_wait_that_is_none(text: str) -> None:
    assert retry_after({"retry-after": text}) is None


@pytest.mark.parametrize("token", [10**350, 2**40, -1, True, 1.0])
def test_a_token_of_vllm_that_no_vocabulary_has(token: Any) -> None:
    choice = {"token_ids": [token], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
    with pytest.raises(ValueError, match="token ids"):
        _completion(choice, 1, Ends())
    assert parsed_version("9" * 5000 + ".1") == (0, 0)


def test_an_error_of_any_shape_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-4f9a1c77e2")
    for body in ("[" * 100_000, "1" + "0" * 5000, '{"error": 1e999}', '{"detail": [1]}', "null", ""):
        with hostile_server(whole(body, "400 No")) as server:
            assert Client(server.url, "judge").chat("grape", HELLO, max_tokens=9).why == "answered 400"


@pytest.mark.parametrize("value", ["{}", "[]", '{"a":{}}', '"ab"', "0.5", "[1.5]", '{"%d":0}'])
def test_the_memory_of_a_parsed_body_is_bounded(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of so many small values that the limit is just kept, or refused before any is built."""
    monkeypatch.setattr(client, "LARGEST_PARSED", 10_000_000)
    for count in (1_000, 20_000, 50_000, 150_000, 1_000_000):
        parts = [value % n if "%" in value else value for n in range(count)]
        body = f"[{','.join(parts)}]".encode()
        del parts
        tracemalloc.start()
        try:
            with contextlib.suppress(ValueError):
                parse_response(body)
                assert count < 1_000_000
            assert tracemalloc.get_traced_memory()[1] < 10_000_000 + 2 * len(body)
        finally:
            tracemalloc.stop()


@pytest.mark.slow
def test_a_large_batch_of_embeddings_is_read() -> None:
    body = json.dumps({"data": [{"index": n, "embedding": [0.123456789] * 4096} for n in range(256)]}).encode()
    vectors = parse_vectors(parse_response(body), 256)
    assert vectors[255] == [0.123456789] * 4096
