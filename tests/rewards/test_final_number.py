"""What `final_number` reads as a number, and what it does not."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.rewards.checkers import check_texts
from vigneron.rewards.final_number import final_number, why_no_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # groups
        ("1,234", "1234"),
        ("$1,234,567.50.", "1234567.5"),
        ("12,34,567", "1234567"),
        ("1,00,000.5", "100000.5"),
        ("1 234", "1234"),
        ("1\u00a0234\u202f567,5", "1234567.5"),
        ("1'234", "1234"),
        ("1’234.50", "1234.5"),
        ("1{,}234", "1234"),
        ("1\\,234", "1234"),
        ("1.234,56", "1234.56"),
        ("1.234.567", "1234567"),
        # decimals
        ("1.234", "1.234"),
        ("3,14", "3.14"),
        ("#### 2,5", "2.5"),
        ("0,125", "0.125"),
        ("1234,567", "1234.567"),
        (".5", "0.5"),
        ("so...5", "5"),
        # signs
        ("−5", "-5"),
        ("–5", "-5"),
        ("it is -$1,000", "-1000"),
        ("-.5", "-0.5"),
        ("3–5", "5"),
        ("x-5", "5"),
        # other scripts
        ("٤٢", "42"),
        ("१,२३,४५६", "123456"),
        ("４２．５", "42.5"),
        ("٣٫١٤", "3.14"),
        ("答案是42。", "42"),
        # exponents and fractions
        ("1e5", "100000"),
        ("2.5E-3", "0.0025"),
        ("3/4", "0.75"),
        ("½", "0.5"),
        ("5½", "5.5"),
        ("-5 1/2", "-5.5"),
        ("100 1/2", "100.5"),
        ("\\frac{3}{4}", "0.75"),
        ("1\\dfrac{3}{4}", "1.75"),
        # lists are no groups
        ("10 100 20", "20"),
        ("5 10 100", "100"),
        ("2020 100", "100"),
        ("1 2345", "2345"),
        ("7\n100", "100"),
        # no number
        ("1,2,3", None),
        ("1,23,45", None),
        ("1.2.3", None),
        ("12:30", None),
        ("10^3", None),
        ("10³", None),
        ("3/4/2025", None),
        ("3/0", None),
        ("5 3/2", None),
        ("12,000/3", None),
        ("12 000/3", None),
        ("12\u00a0050/60", None),
        ("12 000 1/2", None),
        ("1,000 1/2", None),
        ("12'000 1/3", None),
        ("1,234 5/6", None),
        ("1/2 3/4", "0.75"),
        ("1 234 567 1/2", None),
        ("1e9999", None),
        ("1.234,567.8", None),
        ("#### 1,2,3 or 4", None),
        ("v2.0.1", None),
        ("四十二", None),
    ],
)
def test_how_numbers_are_written(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Fraction(Decimal(number)))


@given(st.integers(-(10**15), 10**15), st.sampled_from([",", "_", " ", "\u202f", "'"]))
def test_a_number_in_groups_is_itself(number: int, mark: str) -> None:
    written = f"{number:,}".replace(",", mark if mark != "_" else "")
    assert final_number(written) == final_number(f"It is {written}.") == final_number(f"#### {written} m") == number


@given(st.decimals(-(10**9), 10**9, places=2))
def test_a_decimal_comma_of_two_places_is_a_point(number: Decimal) -> None:
    assert final_number(f"{number}") == final_number(f"{number}".replace(".", ",")) == Fraction(number)


def test_the_answer_is_read_by_the_same_rule() -> None:
    for completion, answer, right in (
        ("14", "3,14", False),
        ("99,14", "3,14", False),
        ("3.14", "3,14", True),
        ("5", "−5", False),
        ("0", "1,00,000", False),
        ("100000", "1,00,000", True),
        ("#### 2", "#### 2,5", False),
        ("0.5", "1/2", True),
        ("4", "3/4", False),
        ("3", "1,2,3", None),
    ):
        assert check_texts("final_number", ["p"], [completion], {"answer": [answer]}) == (right,)


def test_an_answer_without_a_number_is_unusable() -> None:
    assert why_no_number("1,2,3") == why_no_number("no idea") == "has no number that `final_number` can read"
    assert why_no_number("#### 42") is None
    assert why_no_number(42) is None
