"""Whose names a test uses without an import: Python's or the code's.

The code under test often imports them, so that tests rely on it; but the code's own `sqrt` might give any number.
"""

import ast
import builtins
import math
import sys
from collections.abc import Iterator
from typing import Any

from vigneron.sandbox.inside.refused import MODULES, NoTest

HELPERS: dict[str, str] = {
    **{name: "math" for name in dir(math) if not name.startswith("_")},
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque"), "collections"),
    **dict.fromkeys(("permutations", "combinations"), "itertools"),
    **dict.fromkeys(("datetime", "date", "timedelta"), "datetime"),
    **{"reduce": "functools", "deepcopy": "copy", "Fraction": "fractions", "Decimal": "decimal"},
}
"""Names of the standard library that tests use so, and their modules."""
PACKAGES = {
    **{name: name for name in ("numpy", "pandas", "torch", "scipy", "sympy", "networkx")},
    **{"np": "numpy", "pd": "pandas", "nx": "networkx", "plt": "matplotlib"},
}
"""Packages that the sandbox does not have."""
PYTHON = set(dir(builtins))
STANDARD = set(sys.stdlib_module_names)


def helper(name: str) -> Any:
    __import__(HELPERS[name])
    return getattr(sys.modules[HELPERS[name]], name)


def is_pythons(name: str) -> bool:
    return name in PYTHON or name in HELPERS or name in STANDARD or name.startswith("__")


def own_names(tree: ast.Module, free: set[str], entry: str | None) -> frozenset[str]:
    """Names of Python that are the code's in this test: it may define `sum`, `gcd` or `queue`, and a test may test it.
    But `abs` in a test of `f` is Python's. `free`: names that the test does not bind. Raises `NoTest`."""
    _refuse_packages(tree, free)
    own = {entry} if entry else set()
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    own |= (free & called & STANDARD) - PYTHON - set(HELPERS)
    if entry or _imports_the_code(tree):
        return frozenset(own)
    local = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    local |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    codes = {name for name in free - local - own if not is_pythons(name)} | own
    helpers = (free & set(HELPERS)) - local
    alone, elsewhere = _roles(tree, helpers, codes)
    if (both := sorted(alone & elsewhere)) and (codes or len(helpers & called) > 1):
        raise NoTest(
            f"is `{both[0]}` Python's or the code's? Add `from solution import` with the names of the code, or import "
            "it from its module"
        )
    if codes:
        return frozenset(own | alone)
    candidates = sorted(helpers & called) or sorted(name for name in free & called & PYTHON if not _is_error(name))
    if len(candidates) > 1 and not set(candidates) <= alone - elsewhere:
        raise NoTest(
            f"which of {', '.join(candidates[:5])} does it test? Add a column 'entry_point' with the function's name"
        )
    return frozenset(candidates)


def _roles(tree: ast.Module, helpers: set[str], codes: set[str]) -> tuple[set[str], set[str]]:
    """Helpers in assertions that contain nothing else of the code: these test them. And those in other places."""
    if not helpers:
        return set(), set()
    results = _results(tree, codes)
    alone: set[str] = set()
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            names = _names(node)
            if len(names & helpers) == 1 and not names & (codes | results):
                alone |= names & helpers
                inside |= {id(part) for part in ast.walk(node)}
    elsewhere = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in helpers and id(n) not in inside}
    return alone, elsewhere


def _results(tree: ast.Module, codes: set[str]) -> set[str]:
    """Variables that hold what the code gave, or may do so: parameters of the test's own helper functions."""
    results: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test"):
            results |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} - {"self"}
    assignments = [*_assignments(tree)]
    size = -1
    while len(results) > size:
        size = len(results)
        for targets, value in assignments:
            if _names(value) & (codes | results):
                results |= targets
    return results


def _assignments(tree: ast.Module) -> Iterator[tuple[set[str], ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield {name for target in node.targets for name in _names(target)}, node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield _names(node.target), node.iter
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            yield _names(node.target), node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield _names(node.optional_vars), node.context_expr


def _names(node: ast.AST) -> set[str]:
    """`x` and, of `self.x`, also `.x`."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != "self"} | {
        f".{n.attr}" for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def _imports_the_code(tree: ast.Module) -> bool:
    return any(
        (isinstance(n, ast.ImportFrom) and n.module in MODULES)
        or (isinstance(n, ast.Import) and n.names[0].name in MODULES)
        or (isinstance(n, ast.Constant) and n.value in MODULES)
        for n in ast.walk(tree)
    )


def _refuse_packages(tree: ast.Module, free: set[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in free:
            name = node.value.id
            if name in PACKAGES:
                package = f"`{name}`" if PACKAGES[name] == name else f"`{name}` ({PACKAGES[name]})"
                raise NoTest(
                    f"it uses {package}, which tests do not have, and the code's own might give any answer: compare "
                    "plain values"
                )


def _is_error(name: str) -> bool:
    value = getattr(builtins, name, None)
    return isinstance(value, type) and issubclass(value, BaseException)
