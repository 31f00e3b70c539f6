"""Which texts are tests: what is called, what says nothing and is missing, and answers that evade an assertion."""

from typing import Any

import pytest

from support.sandboxed import graded_on, grader, needs_sandbox
from vigneron.sources.verdict import GraderInput

pytestmark = pytest.mark.slow

WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
CALLED: dict[str, Any] = {
    "check(candidate)": {"tests": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"},
    "class TestX": "class TestAdd:\n    def setup_method(self):\n        self.n = 3\n    def test_it(self):\n"
    "        assert add(1, 2) == self.n",
    "unittest under __main__": "import unittest\nif __name__ == '__main__':\n    class T(unittest.TestCase):\n"
    "        def test_it(self):\n            self.assertEqual(add(1, 2), 3)\n    unittest.main()",
    "IsolatedAsyncioTestCase": "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n"
    "    async def test_it(self):\n        self.assertEqual(add(1, 2), 3)",
    "async def test_": "async def test_it():\n    assert add(1, 2) == 3",
    "default arguments": "def test_it(n=2, *, wanted=3):\n    assert add(1, n) == wanted",
    "a function of __main__": "def run():\n    assert add(1, 2) == 3\nif __name__ == '__main__':\n    run()",
    "an if that raises": "if add(1, 2) != 3:\n    raise ValueError('wrong')",
}
MISSING: dict[str, tuple[Any, str]] = {
    "check, never called": ("def check(candidate):\n    assert candidate(1, 2) == 3", "add a column 'entry_point'"),
    "no assertion": ("add(1, 2)", "it has no assertion"),
    "a helper, never called": ("def helper():\n    assert add(1, 2) == 3", "it does not use the code"),
    "nothing of the code": ("assert 1 + 1 == 2", "it does not use the code"),
    "a skipped test": (
        "import unittest\n@unittest.skip('x')\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        self.assertEqual(add(1, 2), 3)",
        "it does not use the code",
    ),
    "a fixture": ("def test_it(db):\n    assert add(1, 2) == 3", "fixtures of pytest"),
    "files": ("open('x', 'w').write('1')\nassert add('x', '') == 1", "it uses files"),
    "a subclass": ("class B(Base):\n    pass\nassert B().x == 1", "derives from a class of the code"),
    "a package that is not there": ("import numpy as np\nassert np.allclose(add(1, 2), 3)", "No module named 'numpy'"),
    "a package, not imported": ("assert np.allclose(add(1, 2), 3)", "`np` (numpy)"),
    "a package by its name": ("assert numpy.isclose(add(1, 2), 3)", "`numpy`"),
    "a helper that may be tested": (
        "assert gcd(4, 6) == 2\nassert add(1, 2) == gcd(3, 6)",
        "is `gcd` Python's or the code's",
    ),
    "a patch of the code": (
        "from unittest.mock import patch\nwith patch('solution.helper', return_value=3):\n    assert add(1, 2) == 3",
        "`patch('solution.helper')`",
    ),
    "a patch of a module": (
        "from unittest import mock\n@mock.patch('time.sleep')\ndef test_it(sleep):\n    assert add(1, 2) == 3",
        "`patch('time.sleep')`",
    ),
    "a patch of a module's attribute": (
        "import time\nfrom unittest.mock import patch\nwith patch.object(time, 'time', return_value=3):\n"
        "    assert add(1, 2) == 3",
        "`patch.object(time, …)`",
    ),
    "a patch of a dictionary": (
        "import os\nfrom unittest.mock import patch\nwith patch.dict(os.environ, {'A': '1'}):\n"
        "    assert add(1, 2) == 3",
        "`patch.dict`",
    ),
    "a module's attribute that is set": ("import time\ntime.sleep = None\nassert add(1, 2) == 3", "`time.sleep = …`"),
    "warnings": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertWarns(UserWarning):\n            add(1, 2)",
        "`assertWarns`",
    ),
    "pytest.warns": ("import pytest\nwith pytest.warns(UserWarning):\n    assert add(1, 2) == 3", "`warns`"),
    "logs": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertLogs() as logs:\n            self.assertEqual(add(1, 2), 3)",
        "`assertLogs`",
    ),
    "not Python": ("assert (", "it is not Python"),
    "two builtins": ("assert abs(sum([1])) == 1", "which of abs, sum does it test"),
    "an entry point that is none": (
        {"tests": "def check(c):\n    assert c(1, 2) == 3", "entry_point": "1 +"},
        "is no expression",
    ),
}
POINT_TEST = "assert Point(1, 2) + Point(3, 4) == Point(4, 6)\nassert Point(1, 2) == Point(1, 2)"
REPLIES = """
import json, sys
answer = sys.modules["vigneron.sandbox.inside.answer"]
def f(x): return 0
old = answer.AnswerPeer.reply
def reply(self, request):
    if request[0] == "{operation}":
        return json.dumps({message}).encode() + b"\\n"
    return old(self, request)
answer.AnswerPeer.reply = reply
"""
ERROR = '["raise", ["error", [["builtins", "ValueError", None]], "", ["tuple"], 0]]'
COLLIDING = '["value", ["dict", *([["int", hex(n * (2**61 - 1))], 1] for n in range(120000))], None]'
EVASIONS: dict[str, tuple[str, Any]] = {
    "refuses a name": (REPLIES.format(operation="get", message=ERROR) + "limit = 1", "assert limit == 2"),
    "refuses all names": (REPLIES.format(operation="names", message=ERROR), "assert f(1) == 2"),
    "kills the test's process": (REPLIES.format(operation="names", message=COLLIDING), "assert f(1) == 2"),
    "leaves out a builtin's name": ("x = 1", "assert sum(10, 15) == 6"),
    "leaves out what Python has": ("x = 1", "assert max([1, 2]) == 2"),
    "a class without fields": (
        "class Point:\n    def __init__(s, *a): pass\n    def __add__(s, o): return s\n"
        "    def __eq__(s, o): return True",
        POINT_TEST,
    ),
    "a class with one state": (
        "class Point:\n    def __init__(s, *a): s.x = 0\n    def __add__(s, o): return Point()\n"
        "    def __eq__(s, o): return True",
        POINT_TEST,
    ),
    "one object": (
        "class Point:\n    def __new__(c, *a): return ONE\n    def __add__(s, o): return s\n"
        "ONE = object.__new__(Point)\nONE.x = 1",
        POINT_TEST,
    ),
    "a state with all numbers": (
        "class Point:\n    def __init__(s, *a): s.x = list(range(9))\n    def __add__(s, o): return Point()",
        POINT_TEST,
    ),
    "half of the fields": (
        "class Point:\n    def __init__(s, x=0, y=0): s.x = x\n    def __add__(s, o): return Point(s.x + o.x)",
        POINT_TEST,
    ),
    "equal once it is known": (
        "LAST = []\nclass Point:\n    def __init__(s, x=0, y=0):\n        s.x, s.y = x, y\n"
        "        for o in LAST: o.__dict__.update(s.__dict__)\n    def __add__(s, o):\n"
        "        p = Point()\n        LAST.append(p)\n        return p",
        POINT_TEST,
    ),
    "constants that are one": (
        "class Color:\n    RED = BLUE = type('C', (), {})()\n    RED.x = 1\ndef color(n): return Color.RED",
        "assert color('r') == Color.RED\nassert color('b') == Color.BLUE",
    ),
    "an empty result": ("def squares(n): return []", "for n, x in enumerate(squares(3)):\n    assert x == n * n"),
    "a false condition": ("def squares(n): return []", "found = squares(3)\nif found:\n    assert found == [0, 1, 4]"),
    "StopIteration in a map": (
        "def square(n): raise StopIteration",
        "for x, y in zip(map(square, [1, 2]), [1, 4]):\n    assert x == y\nassert square",
    ),
    "arguments that it empties": (
        "def ordered(x):\n    x.clear()\n    return []",
        "values = [3, 1]\nassert ordered(values) == sorted(values)",
    ),
    "an argument of a class of its own": (
        "def same(f, x):\n    f.__globals__['expected'] = 0\n    return 0",
        "expected = 3\ndef f(x):\n    return x\nassert same(f, 1) == expected",
    ),
    "reads a function's constants": (
        "def same(f, x):\n    return f.__code__.co_consts[1]",
        "def f(x):\n    return x and 3\nassert same(f, 1) == 3",
    ),
    "replaces what a test imports": (
        "class solve:\n    pass\ndef Counter(*a): return 0\ndef isclose(*a): return True\ndef f(x): return 0",
        "assert Counter(f(1)) == 0 or isclose(f(1), 3)",
    ),
    "star import": (
        "import builtins\ndef abs(x): return 0\n__all__ = ['abs', 'f', 'math']\nclass math:\n"
        "    isclose = lambda *a: True\ndef f(x): return 7",
        "import math\nfrom solution import *\nassert abs(f(1) - 3) < 1 or math.isclose(f(1), 3)",
    ),
    "its own sqrt": ("def sqrt(x): return 0\ndef f(x): return 0", "assert abs(f(2) - sqrt(2)) < 1e-6"),
    "its own sqrt, by a variable": ("def sqrt(x): return 0\ndef f(x): return 0", "x = f(2)\nassert x == sqrt(2)"),
    "its own pi": ("pi = 0\ndef f(x): return 0", "assert f(1) == pi * 1"),
    "its own permutations": (
        "def permutations(x): return []\ndef f(x): return []",
        "assert sorted(f([1, 2])) == sorted(permutations([1, 2]))",
    ),
    "both sides its own": ("def gcd(*a): return 0\ndef factorial(n): return 0", "assert gcd(4, 6) == 2"),
    "its own helpers beside an entry point": (
        "def sqrt(x): return 0\ndef f(x): return 0",
        {"tests": "def check(c):\n    assert c(2) == sqrt(2)", "entry_point": "f"},
    ),
    "the mock's assertion": (
        "def f(cb):\n    cb.assert_not_called()\n    return []",
        "from unittest.mock import Mock\nfor x in f(Mock()):\n    assert x == 1",
    ),
    "a mock that is configured": (
        "def f(cb): cb.configure_mock(called=True, call_count=3)",
        "from unittest.mock import Mock\ncb = Mock()\nf(cb)\nassert cb.call_count == 3",
    ),
    "calls that are added to a mock": (
        "def f(cb): cb.call_args_list.append(((3,), {}))",
        "from unittest.mock import Mock, call\ncb = Mock()\nf(cb)\nassert cb.call_args_list == [call(3)]",
    ),
    "a mock that was not called": (
        "def f(cb): pass",
        "from unittest.mock import Mock\ncb = Mock()\nf(cb)\ncb.assert_called_once_with(3)",
    ),
    "a class with the sign alone": (
        "class Point:\n    def __init__(s, x, y): s.x, s.y = [(n > 0) - (n < 0) for n in (x, y)]\n"
        "    def __add__(s, o): return Point(1, 1)",
        POINT_TEST,
    ),
    "another number in an error": (
        "def f(): raise OSError(3, 'x')",
        "try:\n    f()\n    assert False\nexcept OSError as e:\n    assert e.errno == 2",
    ),
    "a builtin in place of fn_name": ("x = 1", {"tests": {"fn_name": "sum", "inputs": [[[1, 2]]], "outputs": [3]}}),
    "not infinite": (
        "def f(x): return 1e308",
        {"tests": '{"fn_name": "f", "inputs": [[1]], "outputs": [Infinity]}'},
    ),
    "not NaN": ("def f(x): return 'nan'", {"tests": '{"fn_name": "f", "inputs": [[1]], "outputs": [NaN]}'}),
    "a builtin that agrees": ("def f(x): return isinstance", "assert f(1)(3, int)"),
    "exits for the test": ("def f(x): raise SystemExit(0)", "f(1)\nassert f(2) == 3"),
    "skips for the test": (
        "import unittest\nclass S(unittest.SkipTest): pass\ndef f(x): raise S",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        self.assertTrue(True)\n        self.assertEqual(f(1), 2)",
    ),
}


@needs_sandbox
def test_every_form_is_called() -> None:
    for code, score in ((WRONG, 0), (RIGHT, 1)):
        rows = {name: row if isinstance(row, dict) else {"tests": row} for name, row in CALLED.items()}
        verdicts = {name: graded_on(row, [code])[0] for name, row in rows.items()}
        assert {name: (v.reasoning, v.why) for name, v in verdicts.items() if v.score != score} == {}


@needs_sandbox
def test_what_tests_nothing_is_missing_for_every_program_and_says_how_to_write_it() -> None:
    for code in (RIGHT, WRONG, "raise ValueError"):
        for name, (row, why) in MISSING.items():
            if code.startswith("raise") and ("use the code" in why or "named 'numpy" in why or "fixture" in why):
                continue  # known only after the test has run, and the code fails before
            (verdict,) = graded_on(row if isinstance(row, dict) else {"tests": row}, [code])
            assert verdict.score is None, name
            assert verdict.why is not None
            assert why in verdict.why, name
            assert "\n" not in verdict.why


@needs_sandbox
def test_an_assertion_cannot_be_evaded() -> None:
    rows = [test if isinstance(test, dict) else {"tests": test} for _, test in EVASIONS.values()]
    codes = [code for code, _ in EVASIONS.values()]
    verdicts = grader()([GraderInput("q", code, row) for code, row in zip(codes, rows, strict=True)])
    wrong = {name: (v.score, v.reasoning, v.why) for name, v in zip(EVASIONS, verdicts, strict=True) if v.score != 0}
    assert wrong == {}
