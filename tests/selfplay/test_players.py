"""Who plays a role beside the policy: a model behind a real server, which answers, fails, or is not there."""

from pathlib import Path
from typing import Any

import pytest

from support.endpoint_judges import KEY, environment
from support.games import game_config, game_options, played
from support.servers import Seen, Sent, Server, chat, port_of_nobody, refusal, serving
from support.talking import talking_folder
from vigneron import api
from vigneron.errors import UserError

__all__ = ["environment"]


def against(server: Server | str, **keys: Any) -> dict[str, Any]:
    url = server if isinstance(server, str) else server.url
    return {"players": {"bob": {"kind": "endpoint", "model": "grape", "url": url}}, **keys}


def by_length(seen: Seen, before: int) -> Sent:
    """Answers with as many letters as it was told: the same for the same conversation."""
    told = seen.body["messages"][-1]["content"]
    return chat("b" * (1 + len(told)))


def test_the_endpoint_plays_its_role_and_is_not_trained() -> None:
    with serving(by_length) as server:
        batch = played(**against(server))
    samples = batch.samples
    assert set(samples.columns["role"]) == {"ann"}
    assert samples.extras["environment_error"] == (None,) * 6
    assert len(server.seen) == 12  # 6 episodes of two rounds
    for seen in server.seen:
        assert seen.body["model"] == "grape"
        assert seen.body["temperature"] == 0.0
        assert seen.body["max_tokens"] == 8
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        roles = [message["role"] for message in seen.body["messages"]]
        assert roles in (["user", "user"], ["user", "user", "assistant", "user"])
        assert seen.body["messages"][0]["content"].startswith("bob ")
    longest = max(server.seen, key=lambda seen: len(seen.body["messages"])).body["messages"]
    assert longest[2]["content"] == "b" * (1 + len(longest[1]["content"]))  # its own turn, as it wrote it
    for i in range(6):
        first = samples.completions[i]
        assert first[1]["content"] == str(1 + len(str(len(first[0]["content"]))))  # the length of bob's answer


def test_the_same_conversations_are_the_same_batch() -> None:
    with serving(by_length) as server:
        one, other = played(**against(server)), played(**against(server))
    assert one.samples.completions == other.samples.completions
    assert one.samples.completion_ids == other.samples.completion_ids


def failing_for(topic: str, how: Sent) -> Any:
    def script(seen: Seen, before: int) -> Sent:
        return how if seen.body["messages"][0]["content"].endswith(topic) else by_length(seen, before)

    return script


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (refusal(500, "out of memory"), "answered 500 ('out of memory') (4 times)"),
        (refusal(400, "too long"), "answered 400 ('too long')"),
        (Sent(body='{"choices": []}'), "returned a malformed response (4 times)"),
        (Sent(body="{}", cut=1), "broke off its response"),
    ],
)
def test_an_endpoint_that_fails_takes_its_episodes_out(how: Sent, message: str) -> None:
    with serving(failing_for("two words", how)) as server:
        batch = played(**against(server))
    errors = batch.samples.extras["environment_error"]
    assert errors[:3] == (None,) * 3
    assert all(error.startswith("environment.players.bob") and message in error for error in errors[3:])
    rewards = batch.samples.extras["environment_reward"]
    assert [reward is None for reward in rewards] == [False] * 3 + [True] * 3
    assert batch.signals.metrics["turns/failed"] == 0.5


def test_an_endpoint_that_fails_for_all_ends_the_step() -> None:
    with serving(lambda seen, before: refusal(500, "down")) as server, pytest.raises(UserError) as error:
        played(**against(server))
    assert "failed for all 6 episodes of a step" in str(error.value)
    assert "environment.players.bob: answered 500 ('down')" in str(error.value)


@pytest.mark.parametrize(
    ("status", "message"), [(401, "the key in OPENAI_API_KEY is not accepted"), (404, "it has no model 'grape'")]
)
def test_what_no_retry_mends_ends_the_run_at_once(status: int, message: str) -> None:
    with serving(lambda seen, before: refusal(status)) as server, pytest.raises(UserError) as error:
        played(**against(server))
    assert f"environment.players.bob: '{server.url}' answered {status}: {message}" in str(error.value)
    assert KEY not in str(error.value)


def test_nobody_there() -> None:
    with pytest.raises(UserError, match=r"environment\.players\.bob: cannot be reached"):
        played(**against(f"http://127.0.0.1:{port_of_nobody()}/v1"))


def test_an_empty_answer_is_a_turn() -> None:
    with serving(lambda seen, before: chat("")) as server:
        batch = played(**against(server))
    assert batch.samples.extras["environment_error"] == (None,) * 6
    assert all(completion[1]["content"] == "0" for completion in batch.samples.completions)


def test_requests_of_a_turn_are_made_together() -> None:
    def slow(seen: Seen, before: int) -> Sent:
        return Sent(**{**by_length(seen, before).__dict__, "delay": 0.1})

    with serving(slow) as server:
        played(**against(server, concurrency=3))
    assert server.most == 3


@pytest.mark.slow
def test_a_run_against_an_endpoint(tmp_path: Path) -> None:
    config = game_config(talking_folder(tmp_path / "model"), tmp_path, steps=2, eval_every=2)
    with serving(failing_for("a", refusal(503))) as server:
        game = game_options(**against(server))
        run = api.train(config.model_copy(update={"environment": game}), runs=tmp_path / "runs")
    text = (run.folder / "metrics.jsonl").read_text()
    assert "roles/ann/reward" in text
    assert "roles/bob/reward" not in text
