"""What a judge's reply says: nothing but one JSON object within its bounds is a score."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.sources.batch_judge import verdict_of
from vigneron.sources.client import parse_reply
from vigneron.sources.judge_client import JudgeReply
from vigneron.sources.reply_parsing import (
    Score,
    UnparsableReply,
    combine_scores,
    parse_digits,
    parse_score,
    parse_text,
    parse_yes_probability,
    score_probability,
)

shares = st.floats(0, 1)
words = st.text(st.sampled_from('ab "\\{}:,0.1\n\té漢🍇'), max_size=20)


def reply(**keys: Any) -> str:
    return json.dumps({"reasoning": "so", "score": 0.75, "confidence": 0.5, **keys})


@given(words, shares, shares, st.permutations(["reasoning", "score", "confidence"]), st.sampled_from([None, 2]))
def test_what_was_written_is_read(
    reasoning: str, score: float, confidence: float, order: list[str], indent: Any
) -> None:
    said = {"reasoning": reasoning, "score": score, "confidence": confidence}
    text = json.dumps({key: said[key] for key in order}, indent=indent)
    for written in (text, f"```json\n{text}\n```", f"\n {text} \n"):
        found = parse_score(written)
        assert (found.score, found.confidence, found.reasoning) == (score, confidence, reasoning.strip())
        assert float(written[slice(*found.number_span)]) == score


@given(words.filter(lambda text: text.strip() != ""))
def test_words_around_the_json_are_refused(said: str) -> None:
    for text in (said + reply(), reply() + said):
        with pytest.raises(UnparsableReply):
            parse_score(text)


others = st.recursive(
    st.none() | st.booleans() | words | st.floats(min_value=1, exclude_min=True) | st.floats(max_value=-1e-300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=4,
)


@given(others, st.sampled_from(["score", "confidence"]))
def test_nothing_else_is_a_number_within_0_and_1(value: Any, key: str) -> None:
    with pytest.raises(UnparsableReply, match=f"^{key} is .*(not a number|not within 0 and 1)"):
        parse_score(reply(**{key: value}))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it was empty"),
        (" \n", "it was empty"),
        ("I cannot do that.", "it was not one JSON object and nothing else"),
        (reply()[:-9], "it was not one JSON object and nothing else"),
        ("[1]", "it was not one JSON object"),
        ("0.5", "it was not one JSON object"),
        ("{}", 'it has no "reasoning"'),
        ('{"reasoning": "so", "confidence": 1}', 'it has no "score"'),
        ('{"reasoning": "so", "score": 1}', 'it has no "confidence"'),
        (reply()[:-1] + ', "score": 0}', 'it has "score" twice'),
        (reply(final=1), 'it has the key "final", which was not asked for'),
        (reply(score=7), "score is 7, not within 0 and 1"),
        (reply(score=-0.1), "score is -0.1, not within 0 and 1"),
        (reply(score=math.nan), "score is NaN, not within 0 and 1"),
        (reply(score=math.inf), "score is Infinity, not within 0 and 1"),
        (reply(score=True), "score is true, not a number"),
        (reply(score="0.5"), 'score is "0.5", not a number'),
        (reply(score=None), "score is null, not a number"),
        (reply(confidence=90), "confidence is 90, not within 0 and 1"),
        (reply(reasoning=["so"]), r'reasoning is \["so"\], not a text'),
        (reply(reasoning="\ud800"), "it was not valid Unicode"),
        ("[" * 100_000, "it was not one JSON object"),
    ],
)
def test_what_is_wrong_is_said(text: str, wrong: str) -> None:
    with pytest.raises(UnparsableReply, match=wrong):
        parse_score(text)


def test_a_confidence_that_is_not_needed_may_be_left_out_or_be_anything() -> None:
    assert parse_score('{"reasoning": "so", "score": 1}', verbal=False).confidence == 1
    assert parse_score(reply(confidence="high"), verbal=False).confidence == 1


def test_yes_is_its_own_confidence() -> None:
    assert [(s.score, s.confidence) for s in map(parse_yes_probability, ("0.5", "1.0", "0.25"))] == [
        (0.5, 0),
        (1, 1),
        (0.25, 0.5),
    ]
    assert parse_text(" a\nb ") == "a\nb"


PIECES = [
    ('{"reasoning": "\\"score\\": 0', -3.0),
    ('.1", "score"', -4.0),
    (": 0", -0.1),
    (".", -0.2),
    ("75", -0.6),
    (', "confidence": 0.5}', -5.0),
    ("<end>", -6.0),
]


def test_the_probability_is_that_of_the_tokens_that_write_the_scores_number() -> None:
    text = "".join(piece for piece, _ in PIECES[:-1])
    found = parse_score(text)
    assert text[slice(*found.number_span)] == "0.75"
    pieces = [(piece.encode(), p) for piece, p in PIECES]
    assert score_probability(text, found.number_span, pieces) == pytest.approx(math.exp(-0.3))
    assert score_probability(text, found.number_span, []) is None
    assert score_probability(text, found.number_span, pieces[1:]) is None


@given(st.data(), words)
def test_any_split_of_the_reply_finds_the_same_number(data: st.DataObject, reasoning: str) -> None:
    text = json.dumps({"reasoning": reasoning, "score": 0.25, "confidence": 1}, ensure_ascii=False)
    written = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(written) - 1))))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    start = written.rindex(b"0.25")
    at = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    touching = [a < start + 4 and a + len(piece) > start for a, piece in zip(at, pieces, strict=True)]
    logprobs = [-1.0 if touches else -9.0 for touches in touching]
    found = score_probability(text, parse_score(text).number_span, list(zip(pieces, logprobs, strict=True)))
    assert found == pytest.approx(math.exp(-1))


def score(value: float, reasoning: str = "") -> Score:
    return Score(value, 1.0, reasoning)


def test_agreement_by_hand() -> None:
    found = combine_scores([score(0.2, "low"), score(0.4, "middle"), score(0.9, "high")])
    assert found.score == pytest.approx(0.5)
    # Deviations 0.3, 0.1, 0.4: the variance is 0.26 / 3.
    assert found.confidence == pytest.approx(1 - 2 * math.sqrt(0.26 / 3))
    assert found.reasoning == "middle"
    assert combine_scores([score(0.0), score(1.0)]).confidence == 0
    assert combine_scores([score(0.3)] * 4) == score(0.3)


@given(st.lists(shares, min_size=2, max_size=9))
def test_agreement_is_within_its_bounds(values: list[float]) -> None:
    found = combine_scores([score(value) for value in values])
    assert min(values) - 1e-9 <= found.score <= max(values) + 1e-9
    assert 0 <= found.confidence <= 1


def test_of_several_replies_half_must_be_readable_and_two() -> None:
    good, bad = JudgeReply("x", score(0.5), None, 2, 1), JudgeReply(None, None, "answered 500", 3, 0)
    found = verdict_of(JudgeReply("why", None, None, 5, 4), [good, bad, good, bad, good])
    assert (found.score, found.confidence, found.critique) == (0.5, 1, "why")
    assert (found.tokens_in, found.tokens_out) == (5 + 6 + 6, 4 + 3)
    lost = verdict_of(JudgeReply("why"), [good, bad, bad, bad, good])
    assert (lost.score, lost.why, lost.critique) == (None, "3 of 5 replies failed: answered 500", "why")
    assert verdict_of(JudgeReply(""), [good, bad]).score is None
    assert verdict_of(JudgeReply(""), [good, bad, good, bad]).score == 0.5
    none = verdict_of(JudgeReply(None, why="answered 500"), [])
    assert (none.score, none.why) == (None, "its critique: answered 500")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, f"[{'9' * 400}]", "[1e999" + ", 0" * 9 + "]", "[-1, 2" + ", 0" * 8 + "]"]
)
def test_hostile_digits_are_unparsable(text: str) -> None:
    with pytest.raises(UnparsableReply, match="did not begin with a number"):
        parse_digits(text)


def test_tokens_that_are_no_list_of_bytes_are_left_out() -> None:
    """Of `bytes: 5000000000` Python would make as many zeros."""
    for listed in (10**30, 10**18, 5_000_000_000, "abc", [999]):
        token = {"token": "a", "bytes": listed, "logprob": -1.0}
        choice = {"message": {"content": "a"}, "logprobs": {"content": [token]}}
        assert parse_reply({"choices": [choice]}).token_logprobs == ()
