"""Read a test's source: count its assertions, call what is to be called, and find what makes it no test.

Everything here depends on the test alone, never on the code under test.
"""

import ast
from dataclasses import dataclass
from typing import Any

from vigneron.sandbox.inside.names import own_names
from vigneron.sandbox.inside.refused import MODULES, NoTest, refuse_unsupported

REACHED = "_reached_"
MAX_SHOWN = 80


@dataclass(frozen=True)
class Prepared:
    tree: ast.Module
    own: frozenset[str]
    """Names of builtins, helpers and modules that are the code's in this test."""
    mentioned: frozenset[str]
    called: frozenset[str]
    calls: tuple[str, ...]
    """Test functions that nothing in the test calls."""


def prepare(test: str, setup: str, entry: str | None) -> Prepared:
    """Raises `NoTest`."""
    try:
        tree = ast.parse(f"{setup}\n{test}" if setup else test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoTest(f"it is not Python: {error}") from None
    tree.body = [node for node in tree.body if not _imports_all(node)]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    called = _called(tree)
    check = functions.get("check")
    if check is not None and "check" not in called and _needed(check) == 1:
        if not entry:
            raise NoTest(
                "`check(candidate)` is never called: add a column 'entry_point' with the function's name, or end the "
                "test with `check(NAME)`"
            )
        try:
            argument = ast.parse(entry, mode="eval").body
        except (SyntaxError, ValueError):
            raise NoTest(f"the column 'entry_point' is no expression of Python: {entry[:60]!r}") from None
        tree.body.append(ast.Expr(ast.Call(ast.Name("check", ast.Load()), [argument], [])))
    if not any(_asserts(node) for node in ast.walk(tree)):
        raise NoTest("it has no assertion: write `assert f(x) == value`")
    loads = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    bound = _bound(tree)
    refuse_unsupported(tree, loads, bound)
    own = own_names(tree, loads - bound, entry)
    calls = tuple(name for name, node in functions.items() if name.startswith("test") and name not in called)
    counted = _Count().visit(tree)
    used = frozenset(n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    return Prepared(ast.fix_missing_locations(counted), own, frozenset(loads - bound), used, calls)


def _imports_all(node: ast.stmt) -> bool:
    """`from solution import *`: the code's names are found anyway, and must not replace the test's."""
    return isinstance(node, ast.ImportFrom) and node.module in MODULES and node.names[0].name == "*"


def _needed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    takes = function.args
    return len(takes.posonlyargs) + len(takes.args) - len(takes.defaults)


def _called(tree: ast.Module) -> set[str]:
    """Functions that the body of the module calls, in an `if __name__ == "__main__"` too."""
    called: set[str] = set()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        waiting += ast.iter_child_nodes(node)
    return called


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr.startswith("assert") or node.attr in ("fail", "raises")
    return isinstance(node, ast.Assert | ast.Raise) or (isinstance(node, ast.Name) and node.id == "raises")


def _bound(tree: ast.Module) -> set[str]:
    """Names that the module's body binds."""
    bound: set[str] = set()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        waiting += ast.iter_child_nodes(node)
    return bound


class _Count(ast.NodeTransformer):
    """Insert a call before each assertion: before an `assert`, a `try` with one, and an `if` that raises."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        if node.msg is None:  # not what is expected: the reason is stored with the sample
            shown: ast.expr = node.test
            if isinstance(shown, ast.Compare):
                shown = shown.comparators[0] if isinstance(shown.left, ast.Constant) else shown.left
            node.msg = ast.Constant(f"`{ast.unparse(shown)[:MAX_SHOWN]}` is wrong")
        return [_reached(node), node]

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        raises = any(isinstance(each, ast.Raise) for each in (*node.body, *node.orelse))
        return [_reached(node), node] if raises else node

    def visit_Try(self, node: ast.Try) -> Any:
        parts = [*node.body, *node.orelse, *(each for handler in node.handlers for each in handler.body)]
        raises = any(isinstance(each, ast.Raise | ast.Assert) for each in parts)
        self.generic_visit(node)
        return [_reached(node), node] if raises else node


def _reached(node: ast.stmt) -> ast.Expr:
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(REACHED, ast.Load()), [], [])), node)
