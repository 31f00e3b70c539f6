"""The template language of rubrics: a subset of jinja2 that is bounded in size and time and cannot reach Python
objects.

Names, columns, `if`, one level of `for` over a column, and a few filters. No calls, arithmetic or assignments.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, TemplateError, TemplateSyntaxError, meta, nodes

from vigneron.errors import did_you_mean
from vigneron.rubric.fences import MAX_FENCED

MAX_OUTPUT = 100_000
"""Characters of a rendered template."""
MAX_FENCE_TAGS = 200

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
"""Filters whose output may be longer than their input: allowed on a name, not on another filter's result."""
MAX_SEPARATOR = 20
MAX_INDENT = 8
OPTIONS = {"join": ("d", "attribute"), "tojson": ("indent",)}
"""The arguments of the growing filters, in their order."""
MAX_COMPARISONS = 200
"""Comparisons in a template: each may read two whole columns."""
TESTS = ("defined", "undefined", "none", "string", "number", "mapping", "sequence")
SUBSET = f"a template may use names, `if`, `for` over a column, and the filters {', '.join((*FILTERS, *GROWING))}"


@dataclass(frozen=True)
class TemplateFault:
    line: int
    """The template's line, from 1."""
    what: str


def parsed(environment: Environment, text: str) -> nodes.Template | TemplateFault:
    try:
        return environment.parse(text)
    except TemplateSyntaxError as error:
        return TemplateFault(error.lineno, f"not a valid template: {error.message}")
    except (TemplateError, RecursionError, MemoryError, ValueError, OverflowError) as error:
        return TemplateFault(1, f"the template cannot be parsed ({type(error).__name__})")


def template_faults(environment: Environment, text: str, names: Collection[str]) -> list[TemplateFault]:
    """All faults that show without rendering. `names`: the variables available."""
    tree = parsed(environment, text)
    if isinstance(tree, TemplateFault):
        return [tree]
    try:
        faults = [fault for node in _all([tree]) for fault in _node_faults(node, names)]
        faults = [*_unknown_names(tree, names), *faults, *_too_long(tree, text)]
        if not faults:
            environment.compile(tree)
    except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
        return [TemplateFault(1, f"the template cannot be compiled ({type(error).__name__})")]
    return sorted(dict.fromkeys(faults), key=lambda fault: fault.line)


def columns_of(environment: Environment, text: str) -> set[str]:
    """The columns that a template needs: all that it names, except those tested with `defined` or given a default."""
    tree = parsed(environment, text)
    if isinstance(tree, TemplateFault):
        return set()
    optional = [node.node for node in tree.find_all(nodes.Test) if node.name in ("defined", "undefined")]
    optional += [node.node for node in tree.find_all(nodes.Filter) if node.name == "default" and node.node is not None]
    return _columns([tree]) - _columns(optional)


def loops_of(environment: Environment, text: str) -> dict[str, int]:
    """The columns that a template loops over, with the number of parts in the loops."""
    tree = parsed(environment, text)
    loops: dict[str, int] = {}
    for node in () if isinstance(tree, TemplateFault) else tree.find_all(nodes.For):
        column = _column(node.iter)
        assert column is not None  # otherwise the template is refused
        loops[column] = loops.get(column, 0) + sum(1 for _ in _all([node]))
    return loops


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
    """jinja2 counts its own `self` as declared."""
    unknown = (meta.find_undeclared_variables(tree) | {"self"}) - set(names)
    for node in tree.find_all(nodes.Name):
        if node.ctx == "load" and node.name in unknown:
            yield TemplateFault(node.lineno, f"unknown name '{node.name}'{did_you_mean(node.name, names)}")


def _node_faults(node: nodes.Node, names: Collection[str]) -> Iterator[TemplateFault]:
    faults: Iterable[str] = ()
    if not isinstance(node, ALLOWED):
        what = {"Assign": "set", "Concat": "~"}.get(type(node).__name__) or getattr(node, "operator", None)
        faults = [f"`{what or type(node).__name__.lower()}` is not allowed: {SUBSET}"]
    elif isinstance(node, nodes.Filter):
        faults = _filter_faults(node)
    elif isinstance(node, nodes.Test) and node.name not in TESTS:
        faults = [f"unknown test '{node.name}'{did_you_mean(node.name, TESTS)}"]
    elif isinstance(node, nodes.For):
        faults = _loop_faults(node, names)
    elif isinstance(node, nodes.Getattr | nodes.Getitem):
        faults = _attribute_faults(node)
    return (TemplateFault(node.lineno or 1, what) for what in faults)


def _loop_faults(node: nodes.For, names: Collection[str]) -> Iterator[str]:
    inside = list(_all(node.body))
    if node.recursive or any(isinstance(part, nodes.For) for part in inside):
        yield "a `for` within a `for` is not allowed"
    if _column(node.iter) is None:
        yield "`for` runs over a column, as in `for test in row.tests`"
    if isinstance(node.target, nodes.Name) and node.target.name in names:
        yield f"'{node.target.name}' is already a variable: choose another name for the loop"
    for name in {part.name for part in inside if isinstance(part, nodes.Name)} & set(TEXTS):
        yield f"`{name}` may not be used in a loop"


def _filter_faults(node: nodes.Filter) -> Iterator[str]:
    if node.name not in (*FILTERS, *GROWING):
        yield f"unknown filter '{node.name}'{did_you_mean(node.name, (*FILTERS, *GROWING))}"
    elif node.name in GROWING and isinstance(node.node, nodes.Filter):
        yield f"`{node.name}` is not allowed on the result of another filter"
    elif node.dyn_args is not None or node.dyn_kwargs is not None:
        yield f"`{node.name}`: `*` and `**` are not allowed in arguments"
    elif node.name in GROWING:
        given: list[tuple[str, nodes.Expr]] = list(zip(OPTIONS[node.name], node.args, strict=False))
        given += [(str(each.key), each.value) for each in node.kwargs]
        if len(node.args) > len(OPTIONS[node.name]) or not all(_is_small(node.name, *each) for each in given):
            yield f"`{node.name}` takes {GROWING_TAKES[node.name]}"


GROWING_TAKES = {
    "join": f"a string of up to {MAX_SEPARATOR} characters",
    "tojson": f"`indent`, a whole number up to {MAX_INDENT}",
}


def _is_small(name: str, option: str, argument: nodes.Expr) -> bool:
    """Whether an argument of a growing filter is a constant within its limit."""
    value = argument.value if isinstance(argument, nodes.Const) else None
    if option not in OPTIONS[name]:
        return False
    if name == "tojson":
        return type(value) is int and 0 <= value <= MAX_INDENT
    return isinstance(value, str) and len(value) <= MAX_SEPARATOR


def _attribute_faults(node: nodes.Getattr | nodes.Getitem) -> Iterator[str]:
    key = _key(node)
    name = node.node.name if isinstance(node.node, nodes.Name) else None
    if key is None:
        yield "a key in brackets must be a string or a number, as in `row['a b']`"
    elif str(key).startswith("_"):
        yield f"'{key}' is not allowed: names that begin with `_` are internal to Python"
    elif name in TEXTS:
        yield f"`{name}` is a string and has no '{key}'"
    elif name in PARTS and key not in PARTS[name]:
        yield f"`{name}` has no '{key}'{did_you_mean(str(key), PARTS[name])}"


def _too_long(tree: nodes.Template, text: str) -> Iterator[TemplateFault]:
    """Bounds the rendered length and the comparisons, whatever the texts are."""
    if sum(1 for _ in tree.find_all((nodes.Operand, nodes.And, nodes.Or, nodes.Test))) > MAX_COMPARISONS:
        yield TemplateFault(1, f"has more than {MAX_COMPARISONS} comparisons")
    shown = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    outputs = sum(1 for node in shown if not isinstance(node, nodes.TemplateData))
    if len(text) + outputs * (MAX_FENCED + MAX_FENCE_TAGS) > MAX_OUTPUT:
        yield TemplateFault(
            1, f"shows {outputs} texts of up to {MAX_FENCED} characters: together more than {MAX_OUTPUT}"
        )
