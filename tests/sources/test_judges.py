"""Judges over real servers, and a function: nothing is asked twice, and no failure becomes a zero."""

import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Timer
from typing import Any

import pytest

from support.servers import Seen, Sent, chat, free_port, interrupted_twice, refusal, serving, verdict
from vigneron.config.judges import EndpointJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.sources import client as client_module
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.client import Failure
from vigneron.sources.judges import Conversation, Judge, JudgePrompts, build_judge
from vigneron.sources.verdict import Verdict

KEY = "sk-secret-4f9a1c77e2"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


def endpoint(url: str, folder: Path, **keys: Any) -> Judge:
    config = EndpointJudgeConfig(kind="endpoint", model="grape", url=url, **{"retries": 1, "timeout_s": 5.0, **keys})
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def asking(word: str, *, critique: bool = True) -> JudgePrompts:
    def score(said: str) -> Conversation:
        return ("system", "Score it."), ("user", f"{word}|{said}")

    return JudgePrompts((("system", "Criticise it."), ("user", word)) if critique else None, score)


def plain(words: Sequence[str]) -> list[JudgePrompts]:
    return [asking(word, critique=False) for word in words]


def user(seen: Seen) -> str:
    return next(m["content"] for m in seen.body["messages"] if m["role"] == "user")


def is_critique(seen: Seen) -> bool:
    return seen.body["messages"][0]["content"] == "Criticise it."


def obliging(seen: Seen, before: int) -> Sent:
    """Says of a word that it has so many letters, and scores a tenth for each."""
    word = user(seen).split("|")[0]
    return chat(f" {word} has {len(word)}.\n") if is_critique(seen) else verdict(len(word) / 10, 0.5, f"of {word}")


def scores(found: Sequence[Verdict]) -> list[float | None]:
    return [each.score for each in found]


# ------------------------------------------------------------------------------------------------ what is asked


def test_a_critique_then_a_score_and_never_again(tmp_path: Path) -> None:
    words = ["ab", "abc", "ab", "abcd"]
    with serving(obliging) as server:
        judge = endpoint(server.url, tmp_path)
        found = judge.verdicts([asking(word) for word in words])
        assert scores(found) == [0.2, 0.3, 0.2, 0.4]
        assert {each.confidence for each in found} == {0.5}
        assert [each.critique for each in found] == [f"{word} has {len(word)}." for word in words]
        assert [each.reasoning for each in found] == [f"of {word}" for word in words]
        assert sum(each.tokens_in for each in found) == 6 * 7
        assert (judge.calls, judge.cached, judge.tokens, judge.overlaps) == (6, 0, (42, 18), True)
        assert judge.name == f"grape@{server.url}"
        assert sorted(server.inputs) == ["ab", "abc", "abcd", "abcd|abcd has 4.", "abc|abc has 3.", "ab|ab has 2."]
        again = endpoint(server.url, tmp_path)
        assert scores(again.verdicts([asking(word) for word in [*words, "a"]])) == [0.2, 0.3, 0.2, 0.4, 0.1]
        assert again.calls == 2
        assert len(server.seen) == 8
    # All of it is in the cache: nobody needs to be there.
    offline = endpoint(server.url, tmp_path).verdicts([asking("abc")])
    assert (offline[0].score, offline[0].critique, offline[0].tokens_in) == (0.3, "abc has 3.", 0)


def test_what_is_sent(tmp_path: Path) -> None:
    with serving(obliging) as server:
        endpoint(server.url, tmp_path, max_tokens=99).verdicts([asking("ab")])
    critique, score = (seen.body for seen in server.seen)
    assert critique == {
        "model": "grape",
        "messages": [{"role": "system", "content": "Criticise it."}, {"role": "user", "content": "ab"}],
        "max_tokens": 99,
        "temperature": 0.0,
    }
    form = score.pop("response_format")
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    assert list(form["json_schema"]["schema"]["properties"]) == ["reasoning", "score", "confidence"]
    assert score["messages"][-1]["content"] == "ab|ab has 2."
    assert "logprobs" not in score


def test_another_manner_of_asking_is_another_question(tmp_path: Path) -> None:
    with serving(obliging) as server:
        for keys in ({}, {"max_tokens": 9}, {"confidence": "agreement", "samples": 2}, {"model": "other"}):
            config = EndpointJudgeConfig(kind="endpoint", url=server.url, **{"model": "grape", **keys})
            judge = build_judge(config, cache=AnswerCache(tmp_path / "answers.sqlite"))
            judge.verdicts(plain(["ab"]))
            assert (judge.calls, judge.cached) == (2 if "samples" in keys else 1, 0)


def test_as_many_at_a_time_as_set_and_no_more(tmp_path: Path) -> None:
    """64 samples × 2 items, from two callers at once."""
    work = [asking(f"{sample} {item}") for sample in range(64) for item in range(2)]
    together = Barrier(16, timeout=60)  # breaks unless sixteen are asked together

    def script(seen: Seen, before: int) -> Sent:
        if before < 16:
            together.wait()
        return Sent(body=obliging(seen, before).body, delay=0.05)

    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, concurrency=16)
        with ThreadPoolExecutor(2) as callers:
            found = [v for part in callers.map(judge.verdicts, (work[:64], work[64:])) for v in part]
    assert None not in scores(found)
    assert len(server.seen) == 256
    assert server.most == 16


def test_the_same_question_is_asked_once_though_many_want_it(tmp_path: Path) -> None:
    with serving(lambda seen, n: Sent(body=obliging(seen, n).body, delay=0.1)) as server:
        judge = endpoint(server.url, tmp_path, concurrency=8)
        with ThreadPoolExecutor(2) as callers:
            found = [v for part in callers.map(judge.verdicts, [[asking("abc")] * 4] * 2) for v in part]
    assert scores(found) == [0.3] * 8
    assert (len(server.seen), judge.calls) == (2, 2)
    assert sum(each.tokens_in for each in found) == 14


def test_plain_texts(tmp_path: Path) -> None:
    script = {"a": chat(" two\nlines "), "b": chat(""), "c": chat("cut", "length"), "d": refusal(500)}
    with serving(lambda seen, n: script[user(seen)]) as server:
        found = endpoint(server.url, tmp_path).complete([(("user", word),) for word in "abcd"])
    assert found[0] == "two\nlines"
    assert [each.why for each in found[1:] if isinstance(each, Failure)] == [
        "its reply '': it was empty",
        "its reply 'cut': it was cut after 512 tokens (`reward.judge.max_tokens`)",
        "answered 500 ('no') (2 times)",
    ]


# ------------------------------------------------------------------------------------------------ what goes wrong

GOOD = verdict()
WRONG = {
    "500": (refusal(500), r"^answered 500 \('no'\) \(2 times\)$"),
    "429": (refusal(429, Retry_After="0.01"), r"^answered 429 .*\(2 times\)$"),
    "429 that asks for an hour": (refusal(429, Retry_After="3600"), r"^answered 429 .*with Retry-After 3600 s$"),
    "400": (refusal(400, "no such"), r"^answered 400 \('no such'\)$"),
    "hangs": (Sent(body=GOOD.body, delay=60.0), r"^did not answer within 2 s"),
    "drips": (Sent(body=GOOD.body, drip=0.2), r"^did not answer within 2 s"),
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
def test_no_failure_becomes_a_zero_and_none_is_kept(tmp_path: Path, sent: Sent, why: str) -> None:
    broken = True

    def script(seen: Seen, before: int) -> Sent:
        return sent if broken and user(seen).startswith("bad|") else obliging(seen, before)

    with serving(script) as server:
        judge = endpoint(server.url, tmp_path, timeout_s=2.0)
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
    url = f"http://127.0.0.1:{free_port()}/v1"
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


def test_a_key_that_expires_midway_ends_it_and_what_came_is_kept(tmp_path: Path) -> None:
    with serving(lambda seen, n: obliging(seen, n) if n < 5 else refusal(401)) as server:
        with pytest.raises(UserError, match=r"^reward\.judge: .* answered 401"):
            endpoint(server.url, tmp_path, concurrency=2).verdicts(plain([f"w{i}" for i in range(60)]))
        assert len(server.seen) < 15
    kept = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()
    assert kept == (5,)


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
    with serving(lambda seen, n: Sent(body=obliging(seen, n).body, delay=0.2)) as server:
        judge = endpoint(server.url, tmp_path, concurrency=2)
        Timer(0.1, judge.stop).start()
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
from vigneron.config.judges import EndpointJudgeConfig
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import JudgePrompts, build_judge

def asked(word):
    critique = ("system", "Criticise it."), ("user", word)
    return JudgePrompts(critique, lambda said: (("system", "Score it."), ("user", word + "|" + said)))

config = EndpointJudgeConfig(kind="endpoint", model="grape", url=sys.argv[1], concurrency=4)
judge = build_judge(config, cache=AnswerCache(Path(sys.argv[2]) / "answers.sqlite"))
found = judge.verdicts([asked("x" * (i % 8) + str(i)) for i in range(100)])
print(judge.calls, judge.cached, sum(v.score is None for v in found), sum(v.score for v in found))
"""


@pytest.mark.slow
def test_killed_in_the_middle_the_next_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    killed: list[bool] = []

    def script(seen: Seen, before: int) -> Sent:
        if before >= 80 and not killed:
            killed.append(True)
            process.send_signal(signal.SIGKILL)
            process.wait()
        return Sent(body=obliging(seen, before).body, delay=0.003)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.wait(timeout=60) == -signal.SIGKILL
        first = len(server.seen)
        kept = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert first - 4 <= kept <= first < 90, "all but those under way"
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        assert second[:3] == [str(200 - kept), str(kept), "0"]
        letters = sum(i % 8 + len(str(i)) for i in range(100))
        assert float(second[3]) == pytest.approx(letters / 10)
        assert len(server.seen) == first + 200 - kept


def test_ctrl_c_keeps_what_is_under_way(tmp_path: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        if before == 20:
            process.send_signal(signal.SIGINT)
        return Sent(body=obliging(seen, before).body, delay=0.2 if before >= 15 else 0.0)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in err
        kept = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert kept == len(server.seen) < 40


def test_a_second_ctrl_c_does_not_wait_for_an_endpoint_that_hangs(tmp_path: Path) -> None:
    with serving(lambda seen, n: obliging(seen, n) if n < 20 else Sent(delay=60)) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert interrupted_twice(process, lambda: server.busy == 4) < 25
        kept = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert (kept, len(server.seen)) == (20, 24)


# ------------------------------------------------------------------------------------------------ confidence


def test_agreement_of_several_replies(tmp_path: Path) -> None:
    replies = iter(
        [verdict(0.2, 1, "low"), refusal(400), refusal(400), verdict(0.9, 1, "high"), verdict(0.4, 1, "mid")]
    )
    with serving(lambda seen, n: next(replies)) as server:
        judge = endpoint(server.url, tmp_path, confidence="agreement", samples=4, temperature=0.7)
        (found,) = judge.verdicts(plain(["ab"]))
        assert found.score == pytest.approx(0.5)
        assert found.confidence == pytest.approx(1 - 2 * math.sqrt(0.26 / 3))
        assert found.reasoning == "mid"
        assert {seen.body["temperature"] for seen in server.seen} == {0.7}
    with serving(lambda seen, n: verdict(0.5)) as other:
        judge = endpoint(other.url, tmp_path, confidence="agreement", samples=4, temperature=0.7)
        judge.verdicts([asking("ab", critique=False)])
        assert len(other.seen) == 4, "each sample is a question of its own"


def test_what_failed_of_several_is_asked_again_the_next_time(tmp_path: Path) -> None:
    with serving(lambda seen, n: verdict(0.5) if n < 2 or n > 4 else verdict(7)) as server:
        keys: dict[str, Any] = {"confidence": "agreement", "samples": 3, "concurrency": 1}
        (found,) = endpoint(server.url, tmp_path, **keys).verdicts(plain(["ab"]))
        assert (found.score, found.confidence) == (0.5, 1)
        assert len(server.seen) == 4
        again = endpoint(server.url, tmp_path, **keys)
        again.verdicts(plain(["ab"]))
        assert (again.calls, again.cached) == (2, 2)


LOGPROBS = [('{"reasoning": "so", "score": ', -2.0), ("0", -0.5), (".75", -0.1), (', "confidence": 0.5}', -3.0)]


def test_the_probability_of_the_scores_own_number(tmp_path: Path) -> None:
    with serving(lambda seen, n: chat("".join(token for token, _ in LOGPROBS), logprobs=LOGPROBS)) as server:
        judge = endpoint(server.url, tmp_path, confidence="logprob")
        judge.preflight()
        (found,) = judge.verdicts(plain(["ab"]))
        assert (found.score, found.confidence) == (0.75, pytest.approx(math.exp(-0.3)))
        assert server.seen[-1].body["logprobs"] is True
        again = endpoint(server.url, tmp_path, confidence="logprob")
        assert again.verdicts(plain(["ab"]))[0].confidence == found.confidence
        assert (again.calls, again.cached) == (0, 1)


def test_an_endpoint_without_logprobs_is_refused_at_the_preflight(tmp_path: Path) -> None:
    with serving(obliging) as server:
        judge = endpoint(server.url, tmp_path, confidence="logprob")
        with pytest.raises(
            UserError, match=r"^reward\.judge\.confidence: 'grape' at '.*' returns no log-probs \(choose"
        ):
            judge.preflight()
        (found,) = judge.verdicts(plain(["ab"]))
        assert (found.score, found.why) == (None, "its reply came without log-probs of its tokens")


# ------------------------------------------------------------------------------------------------ a function

RULE = """
import json

def rule(messages):
    asked = messages[-1]["content"]
    if asked == "number": return 5
    if asked == "raise": raise ValueError("no rule")
    if asked.startswith("That could not be read"):
        return json.dumps({"reasoning": "again", "score": 1, "confidence": 1})
    if asked == "mends": return "hm"
    if messages[0]["content"] == "Criticise it.": return "a critique of " + asked
    return json.dumps({"reasoning": asked, "score": 0.5, "confidence": 0.25})
"""


def test_a_function_is_read_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_rules.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    cache = AnswerCache(tmp_path / "answers.sqlite")
    judge = build_judge(PythonJudgeConfig(kind="python", function="house_rules:rule"), cache=cache)
    judge.preflight()
    said, mended = judge.verdicts([asking("ab"), JudgePrompts(None, lambda critique: (("user", "mends"),))])
    assert said == Verdict(0.5, 0.25, "ab|a critique of ab", "a critique of ab")
    assert (mended.score, mended.reasoning) == (1, "again")
    assert (judge.calls, judge.cached, judge.overlaps, judge.name) == (4, 0, False, "python:house_rules:rule")
    for word, what in (("raise", r"raised ValueError: no rule \(house_rules\.py, line 7\)"), ("number", "returned 5,")):
        with pytest.raises(UserError, match=rf"^reward\.judge\.function: 'house_rules:rule' {what}"):
            judge.complete([(("user", word),)])
    with pytest.raises(UserError, match=r"^reward\.judge\.function: 'house_rules' has no function 'law'"):
        build_judge(PythonJudgeConfig(kind="python", function="house_rules:law"), cache=cache)
