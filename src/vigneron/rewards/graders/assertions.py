"""Rewrite a test's assertions so that the expected values stay outside of the sandbox.

`assert f(2) == 4` becomes a call that sends the value of `f(2)`; the 4 and the comparison stay outside. Code under test
shares a process with the test, but cannot fake a value that it does not know. Assertions of other forms are evaluated
inside, where the code could fake them.
"""

import ast
import operator
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_SHOWN = 80


class NotPlain(ValueError):
    """A value from the sandbox is not plain data that can be compared."""


HIDDEN: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.Is: lambda one, other: type(one) is type(other) and one == other,
}
"""Comparisons with a literal that are evaluated outside; `is` only with None, True and False."""


@dataclass(frozen=True)
class Check:
    """A comparison of an expression of the test with a literal."""

    source: str
    compare: type[ast.cmpop]
    literal: Any
    literal_first: bool

    def passes(self, sent: Any) -> bool:
        value = decoded(sent, largest(self.literal))
        sides = (self.literal, value) if self.literal_first else (value, self.literal)
        try:
            return bool(HIDDEN[self.compare](*sides))
        except TypeError:
            return False


@dataclass(frozen=True)
class PreparedTest:
    """A rewritten test."""

    text: str
    check: str
    """The function by which the test sends values."""
    checks: tuple[Check, ...]
    required: frozenset[int]
    """Checks that every complete run of the test makes."""


def prepared(test: str) -> PreparedTest:
    """Raises SyntaxError or ValueError if the test is not Python. Calls functions `test_…` without arguments, as pytest
    does: without a call they would pass with any code."""
    tree = ast.parse(test)
    called = {
        statement.value.func.id
        for statement in tree.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
    }
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
        takes = function.args
        if function.name.startswith("test") and function.name not in called and not (takes.args or takes.kwonlyargs):
            tree.body.append(ast.Expr(ast.Call(ast.Name(function.name, ast.Load()), [], [])))
            called.add(function.name)
    hide = _Hide(f"check_{secrets.token_hex(8)}")
    tree = hide.visit(tree)
    straight = [*tree.body]
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in called:
            straight += _before_return(function.body)
    required = frozenset(hide.places[id(node)] for node in straight if id(node) in hide.places)
    return PreparedTest(ast.unparse(ast.fix_missing_locations(tree)), hide.name, tuple(hide.checks), required)


class _Hide(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []
        self.places: dict[int, int] = {}

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """Not rewritten: a `try` or a `with` may be there to catch the assertion's failure."""
        return node

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in HIDDEN:
            return node
        compare, (left, right) = type(test.ops[0]), (test.left, test.comparators[0])
        for computed, literal in ((left, right), (right, left)):
            try:
                value = ast.literal_eval(literal)
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
            if compare is ast.Is and not (value is None or isinstance(value, bool)):
                continue
            check = Check(ast.unparse(computed)[:MAX_SHOWN], compare, value, literal is left)
            arguments: list[ast.expr] = [ast.Constant(len(self.checks)), computed]
            replaced = ast.Expr(ast.Call(ast.Name(self.name, ast.Load()), arguments, []))
            self.places[id(replaced)] = len(self.checks)
            self.checks.append(check)
            return replaced
        return node


def _before_return(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that every call executes: those before the first that may return."""
    straight: list[ast.stmt] = []
    for statement in body:
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break
        straight.append(statement)
    return straight


def largest(value: Any) -> int:
    """The size of the largest set or dict inside."""
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [*value]
    own = len(value) if isinstance(value, dict | set | frozenset) else 0
    return max([own, *map(largest, parts)])


def decoded(sent: Any, most: int) -> Any:
    """Decode the output of `inside.plain`. A set or dict larger than expected is not built: it cannot be equal, and its
    hashes may have been chosen to collide."""
    if sent is None or isinstance(sent, bool | str):
        return sent
    try:
        kind, first, *rest = sent
        if kind == "int":
            return int(first, 16)
        if kind == "float":
            return float.fromhex(first)
        if kind == "complex":
            return complex(float.fromhex(first), float.fromhex(rest[0]))
        if kind == "bytes":
            return bytes.fromhex(first)
        if kind == "list":
            return [decoded(part, most) for part in first]
        if kind == "tuple":
            return tuple(decoded(part, most) for part in first)
        if kind == "set" and len(first) <= most:
            return {decoded(part, most) for part in first}
        if kind == "dict" and len(first) <= most:
            return {decoded(key, most): decoded(part, most) for key, part in first}
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise NotPlain("what it is cannot be read") from error
    if kind == "object":
        raise NotPlain(f"is an object of the type '{_name(first)}', no plain data")
    raise NotPlain("is larger than what is expected")


def _name(text: Any) -> str:
    return "".join(c for c in str(text) if c.isprintable())[:60]
