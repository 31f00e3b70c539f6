"""Judges over real servers, and a function: nothing is asked twice, and no failure becomes a zero."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from support.endpoint_judges import asking, endpoint, environment, obliging, plain, scores, user  # noqa: F401
from support.servers import Seen, Sent, chat, refusal, serving, verdict
from vigneron.config.judges import EndpointJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.client import Failure
from vigneron.sources.judges import JudgePrompts, build_judge
from vigneron.sources.verdict import Verdict

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
        assert (judge.calls, judge.tokens, judge.overlaps) == (6, (42, 18), True)
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


@pytest.mark.slow
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
