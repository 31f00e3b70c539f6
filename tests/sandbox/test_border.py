"""What crosses the border between a response's code and its test, without a sandbox: both sides in this process."""

import types
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import inf, isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.rewards.graders.code import CodeGrader
from vigneron.rewards.graders.row_tests import MalformedTests, row_tests
from vigneron.rubric.model import CodeItem
from vigneron.sandbox.inside.answer import AnswerPeer
from vigneron.sandbox.inside.plain import NotPlain, decode, dumps, encode, loads
from vigneron.sandbox.inside.refused import NoTest
from vigneron.sandbox.inside.remote import Remote
from vigneron.sandbox.inside.rewrite import prepare
from vigneron.sandbox.inside.tester_peer import PeerForTests
from vigneron.sandbox.runner import ProgramTest, PythonTest, same_output
from vigneron.sources.verdict import GraderInput

ITEM = CodeItem(name="it", description="d", flow="code")
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
        | st.sets(st.text(max_size=2), max_size=3)
    ),
    max_leaves=8,
)


def refuse(*_: Any) -> Any:
    raise NotPlain("no plain data")


def crossed(value: Any) -> Any:
    return decode(loads(dumps(encode(value, refuse))), refuse)


@given(PLAIN)
@settings(max_examples=50, deadline=None)
def test_data_crosses_as_it_is(value: Any) -> None:
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)


def test_types_of_the_standard_library_cross_as_they_are() -> None:
    values = [Counter("aab"), OrderedDict(a=1), deque([1, 2]), range(1, 9, 2), bytearray(b"x"), 2j, inf, -(10**30)]
    values += [Decimal("1.10"), Fraction(1, 3), date(2024, 2, 29), datetime(2024, 2, 29, 1, 2), timedelta(1, 2, 3)]
    assert [repr(crossed(value)) for value in values] == [repr(value) for value in values]
    assert [type(crossed(value)) for value in values] == [type(value) for value in values]


@pytest.mark.parametrize(
    "line",
    [
        *(b"1e999", b"-1e999", b"NaN", b"Infinity", b"1.5", b"[1.0]", b"1" * 5000, b"", b"[", b"{}x", b"\xff"),
        *(
            b'["int", "zz"]',
            b'["int"]',
            b'["float", "one"]',
            b'["set", ["list"]]',
            b'["dict", 1]',
            b'["dict", ["a"]]',
        ),
        *(
            b'["Decimal", "x"]',
            b'["date", "2024-13-01"]',
            b'["Fraction", 1, 0]',
            b'["range", "a"]',
            b'[["list"]]',
            b"[]",
        ),
        *(b'["object", 1]', b'{"list": 1}', b"[" * 100_000, b'["list", ' * 300 + b"1" + b"]" * 300),
    ],
)
def test_what_is_not_in_the_format_is_refused(line: bytes) -> None:
    with pytest.raises(NotPlain):
        decode(loads(line), refuse)


@pytest.fixture
def code() -> Iterator[Any]:
    """Builds the two sides for a program; gives its module as the test sees it."""
    import builtins
    import sys

    out, ask = sys.stdout, builtins.input

    def build(text: str) -> PeerForTests:
        module = types.ModuleType("answer")
        exec(text, vars(module))
        # Each side's request is served while the other waits.
        replies: list[bytes] = []
        answer = AnswerPeer(module, lambda: replies.pop(0), lambda line: None)
        return PeerForTests(lambda: replies.pop(0), lambda line: replies.append(answer.reply(loads(line)[1:])))

    yield build
    sys.stdout, builtins.input = out, ask


AGREES = """
class Yes:
    __eq__ = __lt__ = __contains__ = lambda self, other: True
    __sub__ = __rsub__ = lambda self, other: 0.0
    __abs__ = __float__ = lambda self: 0.0
    __hash__ = lambda self: 0
class Seven(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def f(x):
    return Yes()
def g(x):
    return Seven(7)
"""


def test_operators_of_the_code_decide_on_no_plain_value(code: Any) -> None:
    peer = code(AGREES)
    result = peer.name("f")(3)
    assert isinstance(result, Remote)
    assert (result == 4, result != 4, [result] == [4]) == (False, True, False)
    assert result not in [4, 5]
    for operation in (lambda: result - 1.5, lambda: 1.5 - result, lambda: result < 3, lambda: 4 in result):
        with pytest.raises(TypeError):
            operation()
    made = peer.name("Yes")()
    with pytest.raises(TypeError):
        abs(made - 1.5)
    assert float(result) == 0.0  # a value of its own, chosen before it knows what is expected
    assert not isclose(result, 1.5)
    assert (peer.name("g")(3) == 8, peer.name("g")(3) == 7, peer.name("g")(3) - 7) == (False, True, 0)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, []),
        ("", []),
        ("assert f(1)", [PythonTest("assert f(1)")]),
        (["assert f(1)", " ", "assert f(2)"], [PythonTest("assert f(1)"), PythonTest("assert f(2)")]),
        ("[1][0]\nassert f(1)", [PythonTest("[1][0]\nassert f(1)")]),
        ({"inputs": ["1\n", ["2", "3"]], "outputs": ["a", 5]}, [ProgramTest("1\n", "a"), ProgramTest("2\n3", "5")]),
        ('{"inputs": ["1"], "outputs": ["2"]}', [ProgramTest("1", "2")]),
        (
            [{"input": "1", "output": "2"}, {"input": "3", "output": "4"}],
            [ProgramTest("1", "2"), ProgramTest("3", "4")],
        ),
    ],
)
def test_the_tests_of_a_row(value: Any, wanted: list[Any]) -> None:
    assert row_tests({"tests": value}, "tests", "here") == wanted


def test_other_columns_of_a_row_belong_to_its_tests() -> None:
    row = {"t": "assert f(1)", "test_setup_code": "x = 1", "test_imports": ["import math"], "entry_point": "f"}
    assert row_tests(row, "t", "here") == [PythonTest("assert f(1)", "import math\nx = 1", "f")]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"inputs": ["1"], "outputs": []}, "as many inputs as outputs"),
        ({"input": "1"}, "as many inputs as outputs"),
        ({"inputs": [1], "outputs": [1], "fn_name": "f"}, "the list of a call's arguments"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "f()"}, "is not a name"),
        (["x", {}], "neither a string nor a list"),
    ],
)
def test_a_column_that_is_no_test_is_refused(value: Any, why: str) -> None:
    with pytest.raises(MalformedTests, match=why):
        row_tests({"tests": value}, "tests", "here")


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1 2 \n3", True),
        ("1 2\n3\n", "1 2\n4", False),
        ("1\n\n2", "1\n2", False),
        ("0.3333333333\n", "0.33333334", True),
        ("0.3334\n", "0.33333334", False),
        ("2", "2.0", True),
        ("2.0", "2", True),
        ("-2.00", "-2", True),
        ("2.0000000001", "2", False),
        ("2.0", "02", False),
        ("02", "2", False),
        ("2e0", "2", False),
        ("2.0 x", "2 x", True),
        ("1.000001", "1.0", True),
        ("1.0000011", "1.0", False),
        ("0.0000009", "0.0000001", False),
        ("0.0000001", "0.0", False),
        ("-0.0", "0.0", True),
        ("1000000.9", "1000000.1", True),
        ("1000001.2", "1000000.1", False),
        ("٢.0", "2", False),
        ("nan", "1.0", False),
        ("1e999", "1.0", False),
        ("", "", True),
        ("1" * 400 + ".0", "2.0", False),
    ],
)
def test_printed_output(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@pytest.mark.parametrize(
    ("test", "own"),
    [
        ("assert sum(1, 2) == 3", {"sum"}),
        ("assert abs(f(1) - 1.5) < 1e-6", set()),
        ("assert queue([1]) == 2", {"queue"}),
        ("from solution import f\nassert abs(f(1)) == 1 and max(1, 2) == 2", set()),
        ("import math\nassert math.isclose(f(1), 2)", set()),
        ("assert gcd(4, 6) == 2", {"gcd"}),
        ("assert gcd(4, 6) == 2\nassert lcm(4, 6) == 12", {"gcd", "lcm"}),
        ("assert abs(sqrt(2) - 1.41) < 0.1", {"sqrt"}),
        ("assert f(2) == sqrt(2)", set()),
        ("assert sqrt(4) == 2 and f(1) == 2", set()),
        ("assert sqrt(4) == 2\nassert f(1) == 2", {"sqrt"}),
        ("expected = sqrt(2)\nassert f(2) == expected", set()),
    ],
)
def test_names_of_python_that_are_the_codes(test: str, own: set[str]) -> None:
    assert prepare(test, "", None).own == own


def test_a_test_that_tests_nothing_says_how_to_write_it() -> None:
    for test, why in (("f(1)", "it has no assertion"), ("def check(c):\n    assert c(1)", "'entry_point'")):
        with pytest.raises(NoTest, match=why):
            prepare(test, "", None)


def test_of_a_row_tests_that_expect_no_output_are_not_run() -> None:
    """A program that does nothing would pass them."""
    notices: list[str] = []
    grader = CodeGrader.__new__(CodeGrader)
    grader._item, grader._notice, grader._notified = ITEM, notices.append, set()
    row = {"tests": {"inputs": ["1", "2"], "outputs": [" \n", "4"]}}
    assert grader._tests(GraderInput("q", "", row)) == [ProgramTest("2", "4")]
    assert notices == ["item 'it', tests: tests that expect no output are not run: a program that does nothing passes"]
    none = grader._tests(GraderInput("q", "", {"tests": {"inputs": ["1"], "outputs": [""]}}))
    assert isinstance(none, MalformedTests)
    assert "every expected output is empty" in str(none)


def test_infinite_numbers_of_a_row() -> None:
    (test,) = row_tests({"t": '{"fn_name": "f", "inputs": [[-Infinity]], "outputs": [{"a": [NaN, 1]}]}'}, "t", "here")
    assert isinstance(test, PythonTest)
    assert test.entry == "f"
    assert "called(*(-1e999,))" in test.test
    assert "inf" not in test.test
