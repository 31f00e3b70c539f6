"""Tests as people write them, of honest programs: they pass; with a wrong program they fail."""

from typing import Any

import pytest

from support.sandboxed import grader, needs_sandbox
from vigneron.sources.verdict import GraderInput

pytestmark = pytest.mark.slow

POINT = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Point:
    x: int
    y: int
    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)
    def __mul__(self, n):
        return Point(n * self.x, n * self.y)
    def norm(self):
        return abs(self.x) + abs(self.y)
def middle(a, b):
    return Point((a.x + b.x) // 2, (a.y + b.y) // 2)
"""
STACK = """
class Empty(LookupError):
    def __init__(self, size):
        super().__init__(f"empty at {size}")
        self.size = size
class Stack:
    made = 0
    def __init__(self, items=()):
        self.items = list(items)
        Stack.made += 1
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items:
            raise Empty(0)
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __contains__(self, item):
        return item in self.items
    def __getitem__(self, at):
        return self.items[at]
    @property
    def top(self):
        return self.items[-1]
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.items = []
"""
FUNCTIONS = """
import collections, enum, typing, re
def evens():
    n = 0
    while True:
        yield n
        n += 2
def letters(text):
    return collections.Counter(text)
Pair = collections.namedtuple("Pair", "a b")
def pair(a, b):
    return Pair(a, b)
class Color(enum.Enum):
    RED = 1
    BLUE = 2
def color(name):
    return Color[name]
def apply(function, values):
    return [function(value) for value in values]
def compose(f, g):
    return lambda x: f(g(x))
def counted(function):
    def inner(*args):
        inner.calls += 1
        return function(*args)
    inner.calls = 0
    return inner
def rotate(values):
    values.append(values.pop(0))
def hello(name):
    print("Hello,", name)
def root(x):
    if x < 0:
        raise ValueError("negative")
    return x ** 0.5
def retry(function):
    try:
        return function()
    except KeyError:
        return function()
def greet():
    return "Hi " + input("name? ")
def find(text):
    return re.match("a+", text)
total = 0
def count():
    global total
    total += 1
def total_of(node):
    return node.value + (total_of(node.next) if node.next else 0)
def reverse(node):
    before = None
    while node:
        node.next, before, node = before, node, node.next
    return before
class Solution:
    def twoSum(self, nums: typing.List[int], target: int):
        seen = {}
        for i, n in enumerate(nums):
            if target - n in seen:
                return [seen[target - n], i]
            seen[n] = i
"""
LATER = """
import asyncio, decimal, datetime
async def later(x):
    await asyncio.sleep(0)
    return x + 1
def price(text):
    return decimal.Decimal(text) * 2
def day(text):
    return datetime.date.fromisoformat(text)
"""
NODE = """
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
"""
FIELDS = """
class Bag:
    def __init__(self, *items):
        if len(items) > 1 and items[0] > items[-1]:
            self.size, self.items, self.by = len(items), set(items), {n: 1 for n in items}
        else:
            self.by, self.items, self.size = {n: 1 for n in items}, set(items), len(items)
def bag(items):
    return Bag(*items)
class Percent:
    def __init__(self, value):
        self.value = max(0, min(100, value))
    def __add__(self, other):
        return Percent(self.value + other.value)
class Name:
    def __init__(self, text):
        self.text = text[:5]
def name(text):
    return Name(text)
class Unique:
    def __init__(self, items):
        self.items = sorted(set(items))
def unique(items):
    return Unique(items)
class Length:
    def __init__(self, n):
        self.n = n
def length(n):
    return Length(float(n))
"""
ERRORS = """
import functools, json
def missing():
    raise FileNotFoundError(2, "No such file", "x.txt")
def main():
    raise SystemExit(3)
def parse(text):
    return json.loads(text)
def decode(data):
    return data.decode("utf-8")
def coded():
    error = ValueError("odd")
    error.code = 7
    raise error
def traced(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner
@traced
def square(x):
    "The square."
    return x * x
class Shape:
    "A shape."
    def area(self):
        "Its area."
        return 0
def notify(callback, n):
    for at in range(n):
        callback(at)
async def later(callback):
    await callback(1)
"""
PASS: list[tuple[str, Any]] = [
    (FIELDS, "assert bag([9, 8, 1]) == Bag(1, 8, 9) and bag([1, 2]) != Bag(1, 3)"),
    (FIELDS, "assert Percent(80) + Percent(70) == Percent(150)\nassert Percent(10) + Percent(5) == Percent(15)"),
    (FIELDS, "assert name('abcdefgh') == Name('abcdefg')"),
    (FIELDS, "assert unique([3, 1, 3]) == Unique([1, 3])"),
    (FIELDS, "assert length(2) == Length(2) and length(2.5) != Length(2)"),
    (
        ERRORS,
        "import errno\ntry:\n    missing()\n    assert False\nexcept OSError as e:\n"
        "    assert e.errno == errno.ENOENT and e.filename == 'x.txt' and 'No such file' in str(e)",
    ),
    (
        ERRORS,
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertRaises(SystemExit) as caught:\n            main()\n"
        "        self.assertEqual(caught.exception.code, 3)",
    ),
    (
        ERRORS,
        "import json, pytest\nwith pytest.raises(json.JSONDecodeError) as caught:\n    parse('[1')\n"
        "assert caught.value.pos == 2 and caught.value.lineno == 1",
    ),
    (ERRORS, "try:\n    decode(b'a\\xff')\n    assert False\nexcept UnicodeDecodeError as e:\n    assert e.start == 1"),
    (ERRORS, "try:\n    coded()\n    assert False\nexcept ValueError as e:\n    assert e.code == 7"),
    (ERRORS, "assert square.__name__ == 'square' and square.__doc__ == 'The square.' and callable(square)"),
    (
        ERRORS,
        "assert Shape().area.__name__ == 'area' and Shape.__doc__ == 'A shape.' and Shape.__name__ == 'Shape'\n"
        "assert Shape().area.__doc__ == 'Its area.' and Shape.area.__name__ == 'area'",
    ),
    (
        ERRORS,
        "from unittest.mock import Mock, call\ncb = Mock()\nnotify(cb, 2)\ncb.assert_called_with(1)\n"
        "cb.assert_has_calls([call(0), call(1)])",
    ),
    (ERRORS, "from unittest.mock import MagicMock\ncb = MagicMock()\nnotify(cb, 1)\ncb.assert_called_once_with(0)"),
    (
        ERRORS,
        "import asyncio\nfrom unittest.mock import AsyncMock\ncb = AsyncMock()\nasyncio.run(later(cb))\n"
        "cb.assert_awaited_once_with(1)",
    ),
    (
        FUNCTIONS,
        "import io, sys\nfrom unittest.mock import patch\nwith patch('sys.stdout', new_callable=io.StringIO) as out:\n"
        "    hello('you')\nassert out.getvalue() == 'Hello, you\\n'",
    ),
    (
        "def gcd(a, b):\n    return a if not b else gcd(b, a % b)\ndef lcm(a, b):\n    return a * b // gcd(a, b)",
        "assert gcd(4, 6) == 2\nassert lcm(4, 6) == 12",
    ),
    ("def sqrt(x):\n    return x ** 0.5\ndef half(x):\n    return x / 2", "assert sqrt(4) == 2\nassert half(4) == 2"),
    ("def sqrt(x):\n    return [x ** 0.5]", "assert abs(sqrt(4)[0] - 2) < 1e-6"),
    ("def f(x):\n    return x ** 0.5", "assert abs(f(2) - sqrt(2)) < 1e-6 and f(2) <= pi"),
    ("def sum(a):\n    return a[0] + a[-1]", {"tests": {"fn_name": "sum", "inputs": [[[1, 5, 2]]], "outputs": [3]}}),
    (
        "class Solution:\n    def max(self, a):\n        return -1",
        {"tests": {"fn_name": "max", "inputs": [[[1, 2]]], "outputs": [-1]}},
    ),
    (
        "def f(x):\n    return [float('inf'), -x, float('nan')]",
        {"tests": '{"fn_name": "f", "inputs": [[Infinity]], "outputs": [[Infinity, -Infinity, NaN]]}'},
    ),
    (
        POINT,
        "p = Point(1, 2)\nassert p.x == 1 and p.norm() == 3\nassert p + Point(3, 4) == Point(4, 6)\n"
        "assert p != Point(2, 1)",
    ),
    (
        POINT,
        "assert middle(Point(0, 0), Point(4, 6)) == Point(2, 3)\n"
        "assert isinstance(middle(Point(0, 0), Point(2, 2)), Point)",
    ),
    (
        POINT,
        "assert Point(1, 2) * 3 == Point(3, 6)\nassert len({Point(1, 2), Point(1, 2)}) == 1\n"
        "assert Point(1, 2) in [Point(1, 2)]",
    ),
    (POINT, "assert type(Point(1, 2)).__name__ == 'Point'\nassert str(Point(1, 2)) == 'Point(x=1, y=2)'"),
    (
        STACK,
        "s = Stack([1])\ns.push(2).push(3)\n"
        "assert len(s) == 3 and s.pop() == 3 and s.top == 2 and list(s) == [1, 2]\n"
        "assert s[0] == 1 and 2 in s and 5 not in s and s[-2:] == [1, 2]",
    ),
    (
        STACK,
        "import unittest\nclass T(unittest.TestCase):\n    def test_empty(self):\n"
        "        with self.assertRaises(Empty) as caught:\n            Stack().pop()\n"
        "        self.assertEqual(caught.exception.size, 0)\n"
        "        self.assertEqual(str(caught.exception), 'empty at 0')\n"
        "        self.assertRaises(LookupError, Stack().pop)\n    def test_made(self):\n"
        "        before = Stack.made\n        self.assertFalse(Stack())\n"
        "        self.assertEqual(Stack.made, before + 1)",
    ),
    (STACK, "with Stack([1]) as s:\n    assert s.top == 1\nassert not s\ns.items = [5]\nassert s.pop() == 5"),
    (
        STACK,
        "try:\n    Stack().pop()\n    assert False, 'no error'\nexcept Empty as error:\n    assert error.size == 0",
    ),
    (
        FUNCTIONS,
        "from itertools import islice\nassert list(islice(evens(), 4)) == [0, 2, 4, 6]\ng = evens()\n"
        "assert (next(g), next(g)) == (0, 2)",
    ),
    (FUNCTIONS, "assert letters('aab') == {'a': 2, 'b': 1} and letters('aab').most_common(1) == [('a', 2)]"),
    (FUNCTIONS, "assert pair(1, 2) == (1, 2) and pair(1, 2).b == 2 and tuple(pair(3, 4)) == (3, 4)"),
    (
        FUNCTIONS,
        "assert color('RED') == Color.RED and color('RED') is Color.RED and color('BLUE') != Color.RED\n"
        "assert color('BLUE').value == 2",
    ),
    (
        FUNCTIONS,
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3] and apply(str, [1]) == ['1'] and apply(len, ['ab']) == [2]",
    ),
    (FUNCTIONS, "assert compose(lambda x: x + 1, lambda x: 2 * x)(5) == 11"),
    (
        FUNCTIONS,
        "@counted\ndef double(x):\n    return 2 * x\nassert double(4) == 8 and double(1) == 2\n"
        "assert double.calls == 2",
    ),
    (FUNCTIONS, "values = [1, 2, 3]\nrotate(values)\nassert values == [2, 3, 1]"),
    (
        LATER,
        "import asyncio\nassert asyncio.run(later(1)) == 2\nasync def test_it():\n"
        "    assert await later(2) == 3\n    assert await asyncio.gather(later(1), later(2)) == [2, 3]",
    ),
    (
        LATER,
        "from decimal import Decimal\nimport datetime\n"
        "assert price('1.10') == Decimal('2.20') and day('2024-02-29') == datetime.date(2024, 2, 29)",
    ),
    (
        FUNCTIONS,
        "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\n"
        "with redirect_stdout(out):\n    hello('you')\nassert out.getvalue() == 'Hello, you\\n'",
    ),
    (
        FUNCTIONS,
        "from unittest.mock import patch\nwith patch('builtins.input', return_value='Al'):\n"
        "    assert greet() == 'Hi Al'",
    ),
    (
        FUNCTIONS,
        "import pytest\ndef test_root():\n    assert root(2) == pytest.approx(1.41421356)\n"
        "    with pytest.raises(ValueError, match='neg'):\n        root(-1)",
    ),
    (
        FUNCTIONS,
        "tries = []\ndef flaky():\n    tries.append(1)\n    if len(tries) == 1:\n"
        "        raise KeyError('x')\n    return 7\nassert retry(flaky) == 7 and len(tries) == 2",
    ),
    (
        FUNCTIONS,
        "class Odd(Exception):\n    pass\ndef fail():\n    raise Odd('x')\nimport unittest\n"
        "class T(unittest.TestCase):\n    def test_it(self):\n        with self.assertRaises(Odd):\n"
        "            retry(fail)",
    ),
    (FUNCTIONS, "assert find('aab') and find('aab').group() == 'aa' and find('b') is None"),
    (FUNCTIONS, "count()\ncount()\nassert total == 2"),
    (
        FUNCTIONS,
        NODE + "assert total_of(Node(1, Node(2))) == 3\nn = reverse(Node(1, Node(2, Node(3))))\n"
        "assert [n.value, n.next.value, n.next.next.value] == [3, 2, 1]",
    ),
    (
        FUNCTIONS,
        {
            "tests": "def check(candidate):\n    assert candidate(nums=[2, 7], target=9) == [0, 1]\n",
            "entry_point": "Solution().twoSum",
        },
    ),
    (FUNCTIONS, {"tests": '{"fn_name": "twoSum", "inputs": [[[2, 7], 9]], "outputs": [[[0, 1]]]}'}),
    ("def sum(a, b):\n    return a + b", "assert sum(1, 2) == 3"),
    ("def add(a, b):\n    return a + b", "if add(1, 2) != 3:\n    raise AssertionError\nassert add(1, 1) == 2"),
    ("from math import *\ndef f(x):\n    return sqrt(x)", "assert isclose(f(2) ** 2, 2) and math.sqrt(4) == f(4)"),
    (
        "def add(a, b):\n    return a + b",
        "import sys\ndef test_all():\n    assert add(1, 2) == 3\nif __name__ == '__main__':\n"
        "    test_all()\n    print('ok')\n    sys.exit(0)",
    ),
    (
        "import sys\nn = int(input())\nfor line in sys.stdin:\n"
        "    print(f'{n * float(line) / 3:.7f} ')\n    n += 1\nsys.exit()",
        {"tests": [{"input": "2\n1\n2\n", "output": "0.66666667\n2.0"}]},
    ),
    (
        "import sys, os\nprint(sum(map(int, sys.stdin.read().split())))\nsys.stdout.flush()\nos._exit(0)",
        {"tests": {"inputs": [["1 2", "3"]], "outputs": [["6"]]}},
    ),
]


@needs_sandbox
def test_honest_programs_pass() -> None:
    rows = [test if isinstance(test, dict) else {"tests": test} for _, test in PASS]
    verdicts = grader()([GraderInput("q", code, row) for (code, _), row in zip(PASS, rows, strict=True)])
    tests = [test for _, test in PASS]
    wrong = {
        n: (test, v.reasoning, v.why) for n, (v, test) in enumerate(zip(verdicts, tests, strict=True)) if v.score != 1
    }
    assert wrong == {}
