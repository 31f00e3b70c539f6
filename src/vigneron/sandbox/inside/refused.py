"""Tests that say nothing here, because what they need does not cross to the code's process."""

import ast
import builtins
from collections.abc import Iterator

MODULES = ("answer", "solution")
"""A test may import from the code under these names."""
FILES = frozenset({"open", "tempfile", "tmp_path", "tmpdir"})
STREAMS = ("builtins.input", "sys.stdin", "sys.stdout")
"""What a test may patch: the code's input and output pass through the test's process."""
NOT_SENT = {
    **dict.fromkeys(("assertWarns", "assertWarnsRegex", "warns", "deprecated_call", "catch_warnings"), "warnings"),
    **dict.fromkeys(("assertLogs", "assertNoLogs"), "log messages"),
}
OTHER_PROCESS = "which does not reach the code in its own process: pass values to the code instead"


class NoTest(Exception):
    """A test that says nothing about the code; the message says how to write it."""


def refuse_unsupported(tree: ast.Module, loads: set[str], bound: set[str]) -> None:
    """Raises `NoTest`."""
    if used := FILES & (loads | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}):
        raise NoTest(
            f"it uses files (`{min(used)}`), which the test and the code do not share: pass and compare values instead"
        )
    modules = {name for node in tree.body for name in _imported(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            _refuse_subclass(node, bound)
        elif isinstance(node, ast.Attribute) and node.attr in NOT_SENT:
            raise NoTest(f"it uses `{node.attr}`, but {NOT_SENT[node.attr]} of the code are not sent: compare results")
        elif isinstance(node, ast.Call):
            _refuse_patch(node, modules)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            _refuse_set(node, modules)


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _refuse_subclass(node: ast.ClassDef, bound: set[str]) -> None:
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id not in bound and not hasattr(builtins, base.id):
            raise NoTest(
                f"`class {node.name}({base.id})` derives from a class of the code, which runs in another process: "
                "call the code's own classes instead"
            )


def _refuse_patch(call: ast.Call, modules: set[str]) -> None:
    """`patch("a.b")`, `patch.object(a, "b")`, `patch.dict(a)` of anything but an object that the test made."""
    path = ast.unparse(call.func).split(".")
    target = call.args[0] if call.args else None
    if path[-1] == "patch":
        if isinstance(target, ast.Constant) and target.value not in STREAMS:
            raise NoTest(f"it uses `patch({target.value!r})`, {OTHER_PROCESS}")
    elif path[-2:] == ["patch", "dict"]:
        raise NoTest(f"it uses `patch.dict`, {OTHER_PROCESS}")
    elif path[-2:] in (["patch", "object"], ["patch", "multiple"]) and target is not None:
        name = ast.unparse(target)
        attribute = str(call.args[1].value) if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else ""
        if name in modules and f"{name}.{attribute}" not in STREAMS:
            raise NoTest(f"it uses `patch.{path[-1]}({name}, …)`, {OTHER_PROCESS}")


def _refuse_set(node: ast.Assign | ast.AugAssign | ast.AnnAssign, modules: set[str]) -> None:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in modules:
            name = ast.unparse(target)
            if name not in STREAMS:
                raise NoTest(f"it sets `{name} = …`, {OTHER_PROCESS}")
