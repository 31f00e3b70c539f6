"""A parent and a judge behind `transformers serve`, a real OpenAI-compatible server, with the bundled model."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.servers import free_port
from vigneron.config import EndpointParentConfig, LocalParentConfig
from vigneron.config.judges import EndpointJudgeConfig, LocalJudgeConfig
from vigneron.errors import UserError
from vigneron.policy.bundled import bundled_model_folder
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Conversation, Judge, JudgePrompts, build_judge
from vigneron.sources.parents import Parent, build_parent, conversation

pytestmark = pytest.mark.slow
STARTS_WITHIN_S = 900


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The server's URL, and its model's name."""
    model, port = str(bundled_model_folder("smollm2-135m")), free_port()
    command = Path(sys.executable).with_name("transformers")
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [command, "serve", model, "--port", str(port), "--device", "cpu", "--host", "127.0.0.1"],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads that wait for a busy core cost more than they give
        )
    try:
        until = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < until and process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60):
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")
        yield f"http://127.0.0.1:{port}/v1", model
    finally:
        process.kill()
        process.wait()


def endpoint(url: str, model: str, folder: Path) -> Parent:
    config = EndpointParentConfig(kind="endpoint", model=model, url=url, max_tokens=12, concurrency=2, timeout_s=300)
    return build_parent(config, reads="text", cache=AnswerCache(folder / "answers.sqlite"))


def test_the_endpoint_and_our_own_engine_answer_alike(served: tuple[str, str], tmp_path: Path) -> None:
    url, model = served
    words = ["What is the capital of France?", "Say hello in one word."]
    asked = [conversation("Answer in one short sentence.", word) for word in words]
    found = endpoint(url, model, tmp_path).answer(asked)
    config = LocalParentConfig(kind="local", model="smollm2-135m", max_tokens=12)
    local = build_parent(config, reads="text", cache=AnswerCache(tmp_path / "answers.sqlite"), device="cpu")
    ours = local.answer(asked)
    assert [o.answer for o in found.outcomes] == [o.answer for o in ours.outcomes]
    assert "Paris" in found.outcomes[0].answer
    assert found.tokens == ours.tokens
    assert (found.sent, ours.sent) == (2, 2)


def test_another_model_is_refused_in_one_line(served: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^parent: 'no-such' at '.*' answered 400 \('Server is pinned to"):
        endpoint(served[0], "no-such", tmp_path).answer([conversation(None, "hi")])


def judge(url: str, model: str, folder: Path, **keys: Any) -> Judge:
    config = EndpointJudgeConfig(
        kind="endpoint", model=model, url=url, concurrency=2, timeout_s=300, **{"max_tokens": 32, **keys}
    )
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def even(number: int) -> JudgePrompts:
    """By example: a small model then writes what can be read."""

    def shown(n: int, word: str, score: float) -> Conversation:
        verdict = json.dumps({"reasoning": f"{n} is {word}.", "score": score, "confidence": 0.9})
        return ("user", f"Is {n} even?"), ("assistant", verdict)

    said = (*shown(2, "even", 1.0), *shown(7, "odd", 0.0), ("user", f"Is {number} even?"))
    return JudgePrompts(None, lambda critique: said)


def test_a_judge_there_and_one_of_our_own_say_the_same(served: tuple[str, str], tmp_path: Path) -> None:
    """The server ignores the request for structured output: what can be read is read, the rest is missing."""
    url, model = served
    there = judge(url, model, tmp_path)
    there.preflight()
    critique: Conversation = (("user", "Say in a few words what is wrong with: 2 + 2 = 5."),)
    asked = [even(5), JudgePrompts(critique, lambda said: (("user", f"Write a poem. {said}"),))]
    five, poem = there.verdicts(asked)
    assert five.score in (0.0, 1.0), five.why
    assert five.confidence == 0.9
    assert five.reasoning.startswith("5 is ")
    assert poem.score is None
    assert poem.critique
    assert "its reply '" in poem.why
    assert there.notice is None
    assert there.calls == 1 + 1 + 3, "a preflight, a score, a critique, and a poem twice"
    config = LocalJudgeConfig(kind="local", model="smollm2-135m", max_tokens=32)
    ours = build_judge(config, cache=AnswerCache(tmp_path / "ours.sqlite"), device="cpu")
    assert ours.verdicts(asked[:1]) == [five]
    again = judge(url, model, tmp_path)
    assert again.verdicts(asked[:1])[0].score == five.score
    assert (again.calls, again.cached) == (0, 1)


def test_it_gives_no_logprobs_and_that_shows_at_once(served: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^reward\.judge\.confidence: .* returns no log-probs"):
        judge(*served, tmp_path, confidence="logprob").preflight()
    with pytest.raises(UserError, match=r"^reward\.judge: 'no-such' at '.*' answered 400 \('Server is pinned to"):
        judge(served[0], "no-such", tmp_path).preflight()
