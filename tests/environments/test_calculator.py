"""The calculator: results against Python's own arithmetic, every refusal, hostile text; the environment around it."""

from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.data import sums
from vigneron.data.tasks import load_task
from vigneron.environments.calculator import LONGEST, CalculatorGame, calculate, read_call
from vigneron.environments.reply import checked_reply
from vigneron.errors import UserError


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12 + 34", "46"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) × 4", "20"),
        ("10 − 4 − 3", "3"),
        ("64 ÷ 4 / 2", "8"),
        ("-3 * -(2 + 1)", "9"),
        ("2 - -+-2", "0"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.333333333333333"),
        ("7 / 2", "3.5"),
        ("1 / 3 * 3", "1"),
        ("1 / 1000000", "0.000001"),
        ("007", "7"),
    ],
)
def test_results(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "ends too early"),
        ("1 +", "ends too early"),
        ("1 2", "unexpected '2'"),
        ("* 3", r"unexpected '\*'"),
        ("(1 + 2", "not closed"),
        ("1 + 2)", r"unexpected '\)'"),
        ("()", r"unexpected '\)'"),
        ("1 / 0", "division by zero"),
        ("1 / (2 - 2)", "division by zero"),
        ("2 ** 3", r"unexpected '\*'"),
        ("2 ^ 3", r"unexpected '\^'"),
        ("a", "unexpected 'a'"),
        ("1.", r"unexpected '\.'"),
        ("1e9", "unexpected 'e'"),
        ("٣", "unexpected"),
        ("__import__('os')", "unexpected '_'"),
        ("(" * 30 + "1" + ")" * 30, "within each other"),
        ("-" * 30 + "1", "within each other"),
        ("9" * 31, "too large"),
        ("9999999999 * 9999999999 * 9999999999 * 9999999999", "too large"),
        ("1" * (LONGEST + 1), "longer than 200 characters"),
    ],
)
def test_refusals(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        calculate(expression)


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("-{}".format),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_any_expression_has_pythons_result(expression: str) -> None:
    scope = {"F": Fraction}
    in_python = "".join(f"F({part})" if part.isdigit() else part for part in _parts(expression))
    try:
        expected = eval(in_python, scope)
    except ZeroDivisionError:
        expected = None
    if expected is None:
        with pytest.raises(ValueError, match="division by zero"):
            calculate(expression)
        return
    result = calculate(expression)
    assert float(Fraction(result)) == pytest.approx(float(expected), rel=1e-14)
    if Fraction(expected).denominator == 1:
        assert Fraction(result) == expected


def _parts(expression: str) -> list[str]:
    spaced = "".join(f" {mark} " if mark in "()+-*/" else mark for mark in expression)
    return spaced.split()


@given(st.text(max_size=300) | st.text(alphabet="0123456789.+-*/() ×÷−", max_size=300))
def test_no_text_does_anything_but_a_result_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert len(calculate(text)) < 120


@given(st.lists(st.text() | st.text(alphabet="0123456789+-*/() ").map("calc({})".format), min_size=1, max_size=5))
def test_no_text_breaks_the_environment(texts: list[str]) -> None:
    environment = CalculatorGame({"answer": "46"}, seed=0)
    for text in texts:
        reply = checked_reply(environment.reply(said(text)))
        if reply.done:
            assert reply.reward in (0.0, 1.0)
            return


def test_a_call_and_an_answer() -> None:
    environment = CalculatorGame({"answer": "46"}, seed=0)
    called, wrong_call, last = (environment.reply(said(text)) for text in ("calc(12 + 34)", " calc(12 +)\n", "46\n"))
    assert (called.messages, called.done, called.reward) == ("46", False, None)
    assert (wrong_call.messages, wrong_call.log) == (
        "error: the expression ends too early",
        {"calls": 1, "call_errors": 1},
    )
    assert (last.reward, last.done, last.log) == (1.0, True, {"right": 1.0})


@pytest.mark.parametrize("text", ["47", "46.", "The answer is 46", "", "calc(46", "Calc(46)", "calc (46)"])
def test_any_other_text_is_the_answer(text: str) -> None:
    reply = CalculatorGame({"answer": "46"}, seed=0).reply(said(text))
    assert (reply.reward, reply.done) == (0.0, True)


def test_a_call_too_many_ends_the_conversation() -> None:
    environment = CalculatorGame({"answer": "46"}, seed=0, calls=1)
    assert not environment.reply(said("calc(46)")).done
    last = environment.reply(said("calc(46)"))
    assert (last.reward, last.done) == (0.0, True)


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(UserError, match="needs a column `answer`"):
        CalculatorGame({"answer": 46}, seed=0)


def test_read_call() -> None:
    assert read_call(" calc(1 + (2)) ") == "1 + (2)"
    assert read_call("calc()") == ""
    assert read_call("calc(1) = 1") is None


def test_sums_share_no_terms_and_the_warm_up_plays_win() -> None:
    rows = sums.generate()
    assert len({tuple(sorted(row["terms"].split(" + "))) for row in rows}) == len(rows) == 4 * 360
    assert {row["level"] for row in rows} == set(sums.LEVELS)
    turns = []
    for row in load_task("sums-tool-warmup").rows("train"):
        environment, messages = CalculatorGame({"answer": row["result"]}, seed=0), row["messages"]
        assert calculate(row["terms"]) == row["result"] == str(sum(map(int, row["terms"].split(" + "))))
        for at in range(1, len(messages), 2):
            reply = environment.reply(messages[: at + 1])
            if not reply.done:
                assert messages[at + 1] == {"role": "user", "content": reply.messages}
        assert (reply.done, reply.reward) == (True, 1.0)
        turns.append(len(messages) // 2)
    assert 0.4 < turns.count(2) / len(turns) < 0.6
