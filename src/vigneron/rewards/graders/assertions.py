"""A test's assertions, with the values they expect taken out.

`assert f(2) == 4` becomes a call that sends what `f(2)` is; the 4 stays outside of the sandbox, and so does the
comparison. Code that does not know the value can then not claim it, whatever it does to the process it shares with the
test. An assertion of another form is made inside, and there the code is taken at its word.
"""

import ast
import operator
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_SHOWN = 80


class NotPlain(ValueError):
    """What came out of the sandbox is no data that can be compared."""


HIDDEN: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.Is: lambda one, other: type(one) is type(other) and one == other,
}
"""Comparisons with a literal that are made outside; `is` with None, True and False only."""


@dataclass(frozen=True)
class Check:
    """A comparison of what an expression of the test is with a literal."""

    source: str
    compare: type[ast.cmpop]
    literal: Any
    literal_first: bool

    def passes(self, sent: Any) -> bool:
        found = decoded(sent, largest(self.literal))
        sides = (self.literal, found) if self.literal_first else (found, self.literal)
        try:
            return bool(HIDDEN[self.compare](*sides))
        except TypeError:
            return False


@dataclass(frozen=True)
class PreparedTest:
    text: str
    check: str
    """The name under which the test sends values."""
    checks: tuple[Check, ...]
    required: frozenset[int]
    """Checks that every run of the test to its end makes."""


def prepared(test: str) -> PreparedTest:
    """Raises SyntaxError or ValueError where the test is not Python. Functions `test_…` without arguments are called,
    as pytest does: only defined, they would pass with any code."""
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
        """Left alone: it may be there to catch the assertion's failure. So may a `with`."""
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
            check = Check(ast.unparse(computed)[:MOST_SHOWN], compare, value, literal is left)
            arguments: list[ast.expr] = [ast.Constant(len(self.checks)), computed]
            replaced = ast.Expr(ast.Call(ast.Name(self.name, ast.Load()), arguments, []))
            self.places[id(replaced)] = len(self.checks)
            self.checks.append(check)
            return replaced
        return node


def _before_return(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that a call comes through, whatever happens: up to the first that might leave early."""
    straight: list[ast.stmt] = []
    for statement in body:
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break
        straight.append(statement)
    return straight


def largest(value: Any) -> int:
    """The size of the largest set or dictionary within."""
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [*value]
    own = len(value) if isinstance(value, dict | set | frozenset) else 0
    return max([own, *map(largest, parts)])


def decoded(sent: Any, most: int) -> Any:
    """What `inside.plain` sent. A set or dictionary larger than any that is expected is not built: it is not equal, and
    its hashes may have been chosen to collide."""
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
