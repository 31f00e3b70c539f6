"""Judges that fail, over real servers: no failure becomes a zero, and what is under way at the end is kept."""

import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier

import pytest

from support.endpoint_judges import KEY, asking, endpoint, environment, is_critique, obliging, plain, scores, user  # noqa: F401
from support.servers import (
    LONG_S,
    Seen,
    Sent,
    chat,
    expiring_key,
    hurry_only,
    interrupted_twice,
    port_of_nobody,
    refusal,
    serving,
    verdict,
)
from vigneron.config.judges import EndpointJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import build_judge

GOOD = verdict()
WRONG = {
    "500": (refusal(500), r"^answered 500 \('no'\) \(2 times\)$"),
    "429": (refusal(429, Retry_After="0.01"), r"^answered 429 .*\(2 times\)$"),
    "429 that asks for an hour": (refusal(429, Retry_After="3600"), r"^answered 429 .*with Retry-After 3600 s$"),
    "400": (refusal(400, "no such"), r"^answered 400 \('no such'\)$"),
    "hangs": (Sent(body=GOOD.body, delay=LONG_S), r"^did not answer within 2 s"),
    "drips": (Sent(body=GOOD.body, drip=1.0), r"^did not answer within 2 s"),
    "cut off": (Sent(body=GOOD.body, cut=30), "^broke off its response"),
    "truncated body": (Sent(body=GOOD.body[:50]), "^returned a malformed response"),
    "no JSON": (Sent(body="<html>busy</html>"), "^returned a malformed response"),
    "reply truncated": (chat('{"reasoning": "so", "sco'), "nothing else$"),
    "reply cut by the limit": (chat('{"reasoning": "so", "sco', "length"), "it was cut after 512 tokens"),
    "whole, but cut": (Sent(body=GOOD.body.replace('"stop"', '"length"')), "it was cut after 512 tokens"),
    "score 7": (verdict(7), r"^its reply '\{.*': score is 7, not within 0 and 1$"),
    "prose around": (chat('Sure: {"reasoning": "so", "score": 1, "confidence": 1}'), "nothing else$"),
    "refusal in words": (
        chat("I cannot help with that."),
        "^its reply 'I cannot help with that.': it was not one JSON",
    ),
    "refusal apart": (chat(None, refusal="I will not."), r"it refused \('I will not\.'\)$"),
    "silent": (chat(None), "it was empty$"),
    "true": (verdict(True), "score is true, not a number$"),
    "text": (verdict("0.5"), 'score is "0.5", not a number$'),
    "NaN": (verdict(math.nan), "score is NaN, not within 0 and 1$"),
    "keys missing": (chat('{"score": 0.5}'), 'it has no "reasoning"$'),
}


@pytest.mark.parametrize(("sent", "why"), WRONG.values(), ids=WRONG)
def test_no_failure_becomes_a_zero_and_none_is_kept(
    tmp_path: Path, sent: Sent, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def script(seen: Seen, before: int) -> Sent:
        return sent if broken and user(seen).startswith("bad|") else obliging(seen, before)

    if "did not answer" in why:
        hurry_only(monkeypatch, lambda body: "bad|" in json.dumps(body))
    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, timeout_s=2.0 if "did not answer" in why else 60.0)
        good, bad = judge.verdicts([asking("good"), asking("bad")])
        assert good.score == 0.4
        assert bad.score is None
        assert bad.critique == "bad has 3."
        assert re.search(why, bad.why), bad.why
        broken = False
        before = len(server.seen)
        assert scores(endpoint(server.url, tmp_path).verdicts([asking("good"), asking("bad")])) == [0.4, 0.3]
        assert len(server.seen) == before + 1, "the score alone: the critique is kept"


def test_a_failed_critique_is_missing_too(tmp_path: Path) -> None:
    with serving(lambda seen, n: refusal(503) if is_critique(seen) else GOOD) as server:
        (found,) = endpoint(server.url, tmp_path).verdicts([asking("ab")])
    assert (found.score, found.why) == (None, "its critique: answered 503 ('no') (2 times)")
    assert not any("|" in shown for shown in server.inputs)


def test_a_critique_that_the_limit_cut_is_a_critique(tmp_path: Path) -> None:
    with serving(lambda seen, n: chat("It is so", "length") if is_critique(seen) else GOOD) as server:
        (found,) = endpoint(server.url, tmp_path).verdicts([asking("ab")])
    assert (found.score, found.critique) == (0.75, "It is so")


def test_what_cannot_be_read_is_asked_once_more_and_told_why(tmp_path: Path) -> None:
    with serving(lambda seen, n: GOOD if len(seen.body["messages"]) > 2 else verdict(7)) as server:
        judge = endpoint(server.url, tmp_path)
        (found,) = judge.verdicts(plain(["ab"]))
        assert (found.score, found.tokens_in, judge.calls) == (0.75, 14, 2)
        told = server.seen[1].body["messages"]
        assert json.loads(told[2]["content"])["score"] == 7
        assert told[3]["role"] == "user"
        assert "score is 7, not within 0 and 1" in told[3]["content"]
        # What was mended is kept under the question itself.
        again = endpoint(server.url, tmp_path)
        assert (scores(again.verdicts(plain(["ab"]))), again.calls) == ([0.75], 0)


def test_a_reply_that_is_no_unicode_is_missing(tmp_path: Path) -> None:
    with serving(lambda seen, n: chat("\ud800")) as server:
        (found,) = endpoint(server.url, tmp_path).verdicts([asking("ab")])
    assert found.why == "its critique: its reply '\\ud800': it was not valid Unicode"
    assert len(server.seen) == 2


def test_what_was_kept_and_can_no_longer_be_read_is_asked_again(tmp_path: Path) -> None:
    with serving(obliging) as server:
        endpoint(server.url, tmp_path).verdicts(plain(["ab"]))
        store = sqlite3.connect(tmp_path / "answers.sqlite")
        store.execute("UPDATE answers SET value = ?", (json.dumps({"answer": '{"score": 7}', "model": "grape"}),))
        store.commit()
        judge = endpoint(server.url, tmp_path)
        assert (scores(judge.verdicts(plain(["ab"]))), judge.calls) == ([0.2], 1)


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (refusal(401), "answered 401: the key in OPENAI_API_KEY is not accepted"),
        (refusal(403), "answered 403: the key in OPENAI_API_KEY may not use 'grape'"),
        (refusal(404, "no grape"), "answered 404: it has no model 'grape'"),
        (refusal(400, "unknown model"), "answered 400 ('unknown model')"),
        (refusal(503), "answered 503 ('no') (2 times)"),
        (Sent(body="<html>"), "returned a malformed response (2 times)"),
    ],
)
def test_a_judge_that_cannot_answer_shows_at_the_preflight(tmp_path: Path, sent: Sent, line: str) -> None:
    with serving(lambda seen, n: sent) as server:
        with pytest.raises(UserError) as caught:
            endpoint(server.url, tmp_path).preflight()
        assert str(caught.value).startswith("reward.judge: ")
        assert line in str(caught.value)
        assert server.url in str(caught.value)
        assert len(server.seen) <= 2


def test_nobody_there_and_no_key_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{port_of_nobody()}/v1"
    with pytest.raises(UserError, match=r"^reward\.judge: 'grape' at '.*' cannot be reached \(Connection refused\)"):
        endpoint(url, tmp_path, retries=20).preflight()
    monkeypatch.delenv("OPENAI_API_KEY")
    judge = build_judge(
        EndpointJudgeConfig(kind="endpoint", model="m"),
        cache=AnswerCache(tmp_path / "a.sqlite"),
        where="item 'x'.judge",
    )
    with pytest.raises(UserError, match=r"^item 'x'\.judge: OPENAI_API_KEY is not set"):
        judge.preflight()


def test_a_preflight_is_one_small_question(tmp_path: Path) -> None:
    with serving(obliging) as server:
        judge = endpoint(server.url, tmp_path)
        judge.preflight()
        assert (judge.calls, judge.tokens, judge.notice) == (1, (7, 3), None)
    assert server.seen[0].body["max_tokens"] == 16


def test_a_key_that_expires_midway_ends_it_and_what_came_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, stopped = expiring_key(obliging)
    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, concurrency=2, timeout_s=LONG_S)
        stop = judge.stop
        monkeypatch.setattr(judge, "stop", lambda: (stop(), stopped.set()))
        with pytest.raises(UserError, match=r"^reward\.judge: .* answered 401"):
            judge.verdicts(plain([f"w{i}" for i in range(60)]))
        assert len(server.seen) < 15
    assert answers_in(tmp_path) == 5


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("preflight", [True, False])
def test_an_endpoint_without_structured_output_is_asked_without(tmp_path: Path, status: int, preflight: bool) -> None:
    def script(seen: Seen, before: int) -> Sent:
        return refusal(status, "response_format?") if "response_format" in seen.body else obliging(seen, before)

    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, concurrency=1)
        if preflight:
            judge.preflight()
        assert None not in scores(judge.verdicts(plain([f"w{i}" for i in range(20)])))
        refused = [seen for seen in server.seen if "response_format" in seen.body]
    assert len(refused) == 1
    assert "refuses structured output" in judge.notice


def test_a_question_that_is_refused_is_no_reason_to_give_up_structure(tmp_path: Path) -> None:
    with serving(lambda seen, n: refusal(400, "too long") if user(seen) == "b|" else obliging(seen, n)) as server:
        judge = endpoint(server.url, tmp_path, concurrency=1)
        assert scores(judge.verdicts(plain("abc"))) == [0.1, None, 0.1]
        assert "response_format" in server.seen[-1].body
        assert judge.notice is None


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    with serving(lambda seen, n: refusal(429, Retry_After="0.3") if n == 0 else GOOD) as server:
        assert scores(endpoint(server.url, tmp_path).verdicts(plain(["ab"]))) == [0.75]
    first, second = server.seen
    assert second.at - first.at >= 0.3


def test_a_stopped_judge_keeps_what_is_under_way_and_asks_no_more(tmp_path: Path) -> None:
    both = Barrier(2, timeout=LONG_S, action=lambda: judge.stop())

    def script(seen: Seen, before: int) -> Sent:
        both.wait()
        return obliging(seen, before)

    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, concurrency=2, timeout_s=LONG_S)
        found = judge.verdicts(plain([f"w{i}" for i in range(10)]))
        assert scores(found) == [0.2, 0.2, *[None] * 8]
        assert found[-1].why == "not sent: the judge was stopped"
        assert scores(judge.verdicts(plain(["ab"]))) == [None]
        assert len(server.seen) == 2
    assert scores(endpoint(server.url, tmp_path).verdicts(plain(["w0", "w1"]))) == [0.2, 0.2]


def test_the_key_is_in_no_output(tmp_path: Path) -> None:
    def echo(seen: Seen, before: int) -> Sent:
        key = seen.headers["authorization"]
        bad = [refusal(400, key), refusal(400, key), refusal(500, key), refusal(500, key), refusal(401, key)]
        return bad[before] if before < 5 else chat(f"It is {key}.") if is_critique(seen) else verdict(1, 1, key)

    with serving(echo) as server:
        judge = endpoint(server.url, tmp_path, concurrency=1)
        said = [repr(judge), judge.name, str(judge.verdicts(plain(["a", "b"])))]
        with pytest.raises(UserError) as caught:
            judge.preflight()
        said.append(str(caught.getrepr(style="long", chain=True)))
        found = judge.verdicts([asking("c")])
        said.append(str(found))
    assert found[0].reasoning == "Bearer [key]"
    assert KEY not in "".join(said)
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


KILLED = """
import sys
from pathlib import Path
from vigneron import threads
from vigneron.config.judges import EndpointJudgeConfig
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import JudgePrompts, build_judge

def asked(word):
    critique = ("system", "Criticise it."), ("user", word)
    return JudgePrompts(critique, lambda said: (("system", "Score it."), ("user", word + "|" + said)))

config = EndpointJudgeConfig(kind="endpoint", model="grape", url=sys.argv[1], concurrency=4, timeout_s=600)
stop = threads.DaemonPool.stop
threads.DaemonPool.stop = lambda pool: (stop(pool), Path(sys.argv[2], "stopped").touch())
judge = build_judge(config, cache=AnswerCache(Path(sys.argv[2]) / "answers.sqlite"))
found = judge.verdicts([asked("x" * (i % 8) + str(i)) for i in range(100)])
print(judge.calls, judge.cached, sum(v.score is None for v in found), sum(v.score for v in found))
"""


def answers_in(folder: Path) -> int:
    return sqlite3.connect(folder / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()[0]


@pytest.mark.slow
def test_killed_in_the_middle_the_next_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    """When 80 are answered, and four under way."""
    under_way = Barrier(4, timeout=LONG_S)

    def script(seen: Seen, before: int) -> Sent:
        if 80 <= before < 84:
            if under_way.wait() == 0:
                process.kill()
                process.wait()
            under_way.wait()
        return obliging(seen, before)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.wait(timeout=LONG_S) == -signal.SIGKILL
        assert len(server.seen) == 84
        assert answers_in(tmp_path) == 80, "all but those under way"
        second = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True).stdout.split()
        assert second[:3] == ["120", "80", "0"]
        letters = sum(i % 8 + len(str(i)) for i in range(100))
        assert float(second[3]) == pytest.approx(letters / 10)
        assert len(server.seen) == 84 + 120


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_under_way(tmp_path: Path) -> None:
    """Four, which are answered when the process is stopping."""
    under_way = Barrier(4, timeout=LONG_S, action=lambda: process.send_signal(signal.SIGINT))

    def script(seen: Seen, before: int) -> Sent:
        if 20 <= before < 24:
            under_way.wait()
            while not (tmp_path / "stopped").exists():
                time.sleep(0.01)
        return obliging(seen, before)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=LONG_S)
        assert "KeyboardInterrupt" in err
        assert answers_in(tmp_path) == len(server.seen) <= 28, "of a critique that was under way, the score too"


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_an_endpoint_that_hangs(tmp_path: Path) -> None:
    with serving(lambda seen, n: obliging(seen, n) if n < 20 else Sent(delay=LONG_S)) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        interrupted_twice(process, lambda: len(server.seen) == 24, (tmp_path / "stopped").exists)
        assert (answers_in(tmp_path), len(server.seen)) == (20, 24)
