"""What a rubric's template may hold: a small part of jinja2, so that none can run away or reach into Python.

Names, columns, `if`, one level of `for` over a column, and a few filters. No calls, no arithmetic, no assignments.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, TemplateError, TemplateSyntaxError, meta, nodes

from vigneron.errors import did_you_mean
from vigneron.rubric.fences import LONGEST_FENCED

LONGEST_OUTPUT = 100_000
"""Characters of a rendered template."""
LONGEST_FENCE = 200

TEXTS = ("question", "response", "critique", "truth")
PARTS = {"item": ("name", "description"), "loop": ("index", "index0", "first", "last", "length")}
ALLOWED = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Const,
    nodes.If,
    nodes.For,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Test,
    nodes.Filter,
    nodes.Keyword,
)
FILTERS = ("capitalize", "default", "first", "last", "length", "lower", "title", "trim", "upper")
GROWING = ("join", "tojson")
"""Filters whose result is longer than what they are given: allowed on a name, not on another filter's result."""
LONGEST_SEPARATOR = 20
TESTS = ("defined", "undefined", "none", "string", "number", "mapping", "sequence")
MAY_HOLD = f"a template may hold names, `if`, `for` over a column, and the filters {', '.join((*FILTERS, *GROWING))}"


@dataclass(frozen=True)
class TemplateFault:
    line: int
    """Of the template, from 1."""
    what: str


def parsed(environment: Environment, text: str) -> nodes.Template | TemplateFault:
    try:
        return environment.parse(text)
    except TemplateSyntaxError as error:
        return TemplateFault(error.lineno, f"not a template: {error.message}")
    except (TemplateError, RecursionError, MemoryError, ValueError, OverflowError) as error:
        return TemplateFault(1, f"not a template that can be read ({type(error).__name__})")


def template_faults(environment: Environment, text: str, names: Collection[str]) -> list[TemplateFault]:
    """Everything that can be found without rendering. `names`: what is there when it is rendered."""
    tree = parsed(environment, text)
    if isinstance(tree, TemplateFault):
        return [tree]
    try:
        found = [fault for node in _all([tree]) for fault in _of_node(node, names)]
        found = [*_unknown_names(tree, names), *found, *_too_long(tree, text)]
        if not found:
            environment.compile(tree)
    except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
        return [TemplateFault(1, f"not a template that can be compiled ({type(error).__name__})")]
    return sorted(dict.fromkeys(found), key=lambda fault: fault.line)


def columns_of(environment: Environment, text: str) -> set[str]:
    """The columns that a template cannot do without: all it names, but those it asks for or has a default for."""
    tree = parsed(environment, text)
    if isinstance(tree, TemplateFault):
        return set()
    asked = [node.node for node in tree.find_all(nodes.Test) if node.name in ("defined", "undefined")]
    asked += [node.node for node in tree.find_all(nodes.Filter) if node.name == "default" and node.node is not None]
    return _columns([tree]) - _columns(asked)


def _columns(roots: Iterable[nodes.Node]) -> set[str]:
    named = (_column(node) for node in _all(roots))
    return {column for column in named if column is not None}


def _column(node: nodes.Node) -> str | None:
    """`row.x` and `row["x"]`."""
    key = _key(node)
    inside = getattr(node, "node", None)
    return key if isinstance(inside, nodes.Name) and inside.name == "row" and isinstance(key, str) else None


def _key(node: nodes.Node) -> Any:
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) else None


def _all(roots: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    for node in roots:
        yield node
        yield from _all(node.iter_child_nodes())


def _unknown_names(tree: nodes.Template, names: Collection[str]) -> Iterator[TemplateFault]:
    """`self` is jinja's own, and counts as declared."""
    unknown = (meta.find_undeclared_variables(tree) | {"self"}) - set(names)
    for node in tree.find_all(nodes.Name):
        if node.ctx == "load" and node.name in unknown:
            yield TemplateFault(node.lineno, f"unknown name '{node.name}'{did_you_mean(node.name, names)}")


def _of_node(node: nodes.Node, names: Collection[str]) -> Iterator[TemplateFault]:
    found: Iterable[str] = ()
    if not isinstance(node, ALLOWED):
        what = {"Assign": "set", "Concat": "~"}.get(type(node).__name__) or getattr(node, "operator", None)
        found = [f"`{what or type(node).__name__.lower()}` is not allowed: {MAY_HOLD}"]
    elif isinstance(node, nodes.Filter):
        found = _of_filter(node)
    elif isinstance(node, nodes.Test) and node.name not in TESTS:
        found = [f"unknown test '{node.name}'{did_you_mean(node.name, TESTS)}"]
    elif isinstance(node, nodes.For):
        found = _of_loop(node, names)
    elif isinstance(node, nodes.Getattr | nodes.Getitem):
        found = _of_part(node)
    return (TemplateFault(node.lineno or 1, what) for what in found)


def _of_loop(node: nodes.For, names: Collection[str]) -> Iterator[str]:
    inside = list(_all(node.body))
    if node.recursive or any(isinstance(part, nodes.For) for part in inside):
        yield "a `for` within a `for` is not allowed"
    if _column(node.iter) is None:
        yield "`for` runs over a column, as in `for test in row.tests`"
    if isinstance(node.target, nodes.Name) and node.target.name in names:
        yield f"'{node.target.name}' is a name already: choose another for the loop"
    for name in {part.name for part in inside if isinstance(part, nodes.Name)} & set(TEXTS):
        yield f"`{name}` is shown once, not in a loop"


def _of_filter(node: nodes.Filter) -> Iterator[str]:
    if node.name not in (*FILTERS, *GROWING):
        yield f"unknown filter '{node.name}'{did_you_mean(node.name, (*FILTERS, *GROWING))}"
    elif node.name in GROWING and isinstance(node.node, nodes.Filter):
        yield f"`{node.name}` is not allowed on the result of another filter"
    elif node.name in GROWING and not all(_is_short(argument) for argument in node.args):
        yield f"`{node.name}` takes a text of up to {LONGEST_SEPARATOR} characters"


def _is_short(argument: nodes.Expr) -> bool:
    return isinstance(argument, nodes.Const) and len(str(argument.value)) <= LONGEST_SEPARATOR


def _of_part(node: nodes.Getattr | nodes.Getitem) -> Iterator[str]:
    key = _key(node)
    name = node.node.name if isinstance(node.node, nodes.Name) else None
    if key is None:
        yield "a key in brackets is a text or a number, as in `row['a b']`"
    elif str(key).startswith("_"):
        yield f"'{key}' is not allowed: what begins with `_` is Python's own"
    elif name in TEXTS:
        yield f"`{name}` is a text, and has no '{key}'"
    elif name in PARTS and key not in PARTS[name]:
        yield f"`{name}` has no '{key}'{did_you_mean(str(key), PARTS[name])}"


def _too_long(tree: nodes.Template, text: str) -> Iterator[TemplateFault]:
    """So that no text of a model can make a prompt too long."""
    shown = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    texts = sum(1 for node in shown if not isinstance(node, nodes.TemplateData))
    if len(text) + texts * (LONGEST_FENCED + LONGEST_FENCE) > LONGEST_OUTPUT:
        yield TemplateFault(
            1, f"shows {texts} texts of up to {LONGEST_FENCED} characters: together more than {LONGEST_OUTPUT}"
        )
