"""Flows that look at the text: scores worked out by hand, and what must hold for any response."""

import time
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from vigneron.errors import UserError
from vigneron.rewards.graders.build import build_grader
from vigneron.rewards.graders.checks import longest_common, similarity
from vigneron.rubric.model import AnyItem, JudgeItem
from vigneron.sources.verdict import Grader, GraderInput, Verdict

ITEM: TypeAdapter[Any] = TypeAdapter(AnyItem)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "people": {"$ref": "#/$defs/count"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 0}},
}


def render(template: str, answered: GraderInput) -> str:
    return template.replace("{{ row.answer }}", str(answered.row.get("answer")))


def grader(flow: str, **options: Any) -> Grader:
    return build_grader(
        ITEM.validate_python({"name": "it", "description": "d", "flow": flow, **options}), render=render
    )


def judged(scorer: Grader, response: str, answer: str = "Paris") -> Verdict:
    (verdict,) = scorer([GraderInput("q", response, {"prompt": "q", "answer": answer})])
    return verdict


@pytest.mark.parametrize(
    ("operation", "response", "score"),
    [
        ("equals", " paris. ", 1),
        ("equals", "Paris, France", 0),
        ("equals", "", 0),
        ("differs", "PARIS!", 0),
        ("differs", "", 1),
        ("includes", "It is Paris, of course", 1),
        ("includes", "It is paris", 0),
        ("includes", "", 0),
        ("includes_any_case", "it is PARIS", 1),
        ("includes_any_case", "it is Rome", 0),
    ],
)
def test_string_check(operation: str, response: str, score: float) -> None:
    verdict = judged(grader("string_check", operation=operation), response)
    assert (verdict.score, verdict.confidence, verdict.why) == (score, 1.0, None)
    assert verdict.reasoning


@pytest.mark.parametrize("operation", ["includes", "includes_any_case"])
def test_an_empty_reference_is_missing_not_included_in_everything(operation: str) -> None:
    assert judged(grader("string_check", operation=operation), "anything", answer=" ").score is None
    assert judged(grader("string_check"), "", answer="").score == 1


@pytest.mark.parametrize(
    ("pattern", "expect", "response", "score"),
    [
        (r"\b\d{4}\b", "present", "in 1984", 1),
        (r"\b\d{4}\b", "present", "in 84", 0),
        (r"(?i)sorry", "absent", "I am SORRY", 0),
        (r"(?i)sorry", "absent", "", 1),
        (r"yes|no", "whole", "yes", 1),
        (r"yes|no", "whole", "yes, no", 0),
    ],
)
def test_regex(pattern: str, expect: str, response: str, score: float) -> None:
    assert judged(grader("regex", pattern=pattern, expect=expect), response).score == score


@pytest.mark.parametrize("expect", ["present", "absent", "whole"])
def test_an_answer_on_which_a_pattern_takes_for_ever_scores_0(expect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vigneron.rewards.graders.checks.REGEX_S", 0.1)
    verdict = judged(grader("regex", pattern=r"^(a|aa)+$", expect=expect), "a" * 60 + "!")
    assert (verdict.score, verdict.why) == (0, None)
    assert "took more than" in verdict.reasoning


@pytest.mark.parametrize("pattern", ["(", "*a", "[z-a]", "(?P<n>a)(?P=m)"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=r"^item 'it', pattern: .*is not a valid regular expression") as caught:
        grader("regex", pattern=pattern)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "response", "score"),
    [
        ({"at_least": 4}, "one two three four", 1),
        ({"at_least": 4}, "one two – three!", 3 / 4),
        ({"at_least": 4}, " ", 0),
        ({"at_most": 2}, "one two three four", 2 / 4),
        ({"at_most": 2}, "", 1),
        ({"at_least": 0, "at_most": 2}, "", 1),
        ({"at_least": 2, "at_most": 3}, "one two three", 1),
        ({"at_most": 4}, "今天 iPhone很好。", 4 / 5),
        ({"at_most": 2}, "กรุง", 2 / 3),
        ({"at_least": 2}, "दिल्ली दूर है।", 1),
        ({"unit": "characters", "at_most": 4}, "  12345 \n", 4 / 5),
        ({"unit": "sentences", "at_most": 1}, "It costs 3.50 today. Really?! Yes", 1 / 3),
        ({"unit": "sentences", "at_least": 2}, 'He said "no." Then he left.', 1),
        ({"unit": "sentences", "at_least": 4}, "- one\n- two\n\n...", 2 / 4),
        ({"unit": "sentences", "at_least": 2}, "今日は。はい。", 1),
    ],
)
def test_length(options: dict[str, Any], response: str, score: float) -> None:
    assert judged(grader("length", **options), response).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ('{"city": "Paris", "people": 2}', 1),
        ('```json\n{"city": "Paris"}\n```', 1),
        ('```\n{"city": "Par```is"}\n```', 1),
        ('{"city": "paris"}', 0.3),
        ('{"city": "Paris", "people": -1}', 0.3),
        ('{"city": "Paris", "more": 1}', 0.3),
        ("[1, 2]", 0.3),
        ('Here it is: {"city": "Paris"}', 0),
        ('```json\n{"city": "Paris"}\n```\n```json\n{}\n```', 0),
        ('{"city": "Paris"', 0),
        ('{"city": "Paris", "people": NaN}', 0),
        ('{"city": "Paris", "people": 1e999}', 0),
        ('{"city": "Paris", "people": ' + "9" * 5000 + "}", 0),
        ("[" * 1000 + "]" * 1000, 0),
        ('"' + "x" * 300_000 + '"', 0),
        ("", 0),
    ],
)
def test_json_schema(response: str, score: float) -> None:
    assert judged(grader("json_schema", json_schema=CITY, partial=0.3), response).score == score


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strnig"}, "'strnig' is not valid"),
        ({"$ref": "https://example.com/schema.json"}, "is not in the schema"),
        ({"properties": {"a": {"$ref": "other.json#/x"}}}, "is not in the schema"),
        ({"items": {"$ref": "#/$defs/gone"}}, "is not in the schema"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"properties": {"a": {"pattern": "("}}}, r"\$.properties.a.pattern: '\(' is not a 'regex'"),
        ({"const": {1, 2}}, "cannot be written as JSON"),
    ],
)
def test_a_schema_that_is_broken_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^item 'it', json_schema: .*{message}") as caught:
        grader("json_schema", json_schema=schema)
    assert "\n" not in str(caught.value)


def test_names_in_a_schema_are_not_taken_for_keywords_and_patterns_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {"properties": {"pattern": {"type": "integer"}, "$ref": {"type": "string"}}, "const": {"$ref": "http://x"}}
    assert judged(grader("json_schema", json_schema=named), '{"$ref": "http://x"}').score == 1
    keys = {"patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": {"type": "string"}}
    of_keys = grader("json_schema", json_schema=keys)
    assert [judged(of_keys, text).score for text in ('{"n_a": 1, "b": "x"}', '{"n_a": "1"}', '{"b": 1}')] == [1, 0, 0]
    monkeypatch.setattr("vigneron.rewards.graders.schema_validator.REGEX_S", 0.1)
    text = "a" * 60 + "!"
    for slow in ({"pattern": "^(a|aa)+$"}, {"patternProperties": {"^(a|aa)+$": False}, "additionalProperties": True}):
        response = f'"{text}"' if "pattern" in slow else f'{{"{text}": 1}}'
        assert judged(grader("json_schema", json_schema=slow), response).score == 0


def test_similarities_by_hand() -> None:
    # "abcd" and "abxd" share a, b, d; the words: 2 of 3 and 2 of 2.
    assert similarity("ratio", "abcd", "abxd") == pytest.approx(2 * 3 / 8)
    assert similarity("token_f1", "the red cat", "cat, the") == pytest.approx(2 * 2 / 5)
    assert similarity("rouge_l", "the red cat", "cat, the") == pytest.approx(2 * 1 / 5)
    assert similarity("rouge_l", "a b c d e", "a x c y e") == pytest.approx(2 * 3 / 10)
    assert similarity("token_f1", "?!", "…") == 0
    assert similarity("token_f1", "今天天气很好", "今天天气不好") == pytest.approx(5 / 6)
    assert similarity("token_f1", "की", "का") == 0
    assert judged(grader("text_similarity"), "Paris.").score == 1


def test_a_text_of_one_word_over_and_over_takes_no_minutes() -> None:
    begun = time.process_time()
    for metric in ("ratio", "token_f1", "rouge_l"):
        similarity(metric, "the " * 3000, "the a " * 3000)
    assert time.process_time() - begun < 60


TEXT = st.text(max_size=40)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_the_longest_common_sequence_is_that_of_the_usual_table(one: list[str], other: list[str]) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    assert longest_common(one, other) == table[-1][-1]


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT)
def test_similarities_are_symmetric_and_1_for_the_same(one: str, other: str) -> None:
    for metric in ("ratio", "token_f1", "rouge_l"):
        assert similarity(metric, one, one) == 1
        assert 0 <= similarity(metric, one, other) <= 1
        assert similarity(metric, one, other) == similarity(metric, other, one)


@given(st.text("abc", max_size=15), st.text("abc", max_size=15))
def test_the_ratio_is_never_below_difflibs(one: str, other: str) -> None:
    assert similarity("ratio", one, other) >= SequenceMatcher(None, one, other, autojunk=False).ratio() - 1e-12


FLOWS = [
    *(grader("string_check", operation=one) for one in ("equals", "differs", "includes", "includes_any_case")),
    *(grader("regex", pattern=r"\w\d|[^a]$", expect=expect) for expect in ("present", "absent", "whole")),
    *(grader("length", unit=unit, at_least=2, at_most=5) for unit in ("characters", "words", "sentences")),
    grader("json_schema", json_schema=CITY, partial=0.5),
    *(grader("text_similarity", metric=metric) for metric in ("ratio", "token_f1", "rouge_l")),
]
# Unicode as it comes, surrogates too, and what looks like JSON or fences.
RESPONSES = st.one_of(
    st.text(st.characters(), max_size=60),
    st.text("{}[]\"',:.!?01e- \n`\\", max_size=60),
    st.recursive(st.none() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)).map(str),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(RESPONSES, st.text(st.characters(), max_size=20)), min_size=1, max_size=4), st.randoms())
def test_any_response_has_a_score_between_0_and_1_that_is_its_own(pairs: list[tuple[str, str]], draw: Any) -> None:
    samples = [GraderInput("q", response, {"answer": answer}) for response, answer in pairs]
    shuffled = draw.sample(range(len(samples)), len(samples))
    for scorer in FLOWS:
        verdicts = scorer(samples)
        assert all(verdict.score is None or 0 <= verdict.score <= 1 for verdict in verdicts)
        assert all((verdict.score is None) == (verdict.why is not None) for verdict in verdicts)
        assert scorer([samples[i] for i in shuffled]) == [verdicts[i] for i in shuffled]
        assert [scorer([sample])[0] for sample in samples] == verdicts


def test_what_a_judge_scores_is_not_built_here() -> None:
    with pytest.raises(TypeError, match="'it' is scored by a judge"):
        build_grader(JudgeItem(name="it", description="d", flow="judge", critique="c"), render=render)
