"""YAML as plain data, within limits. Does not import torch: an invalid file is refused before anything is loaded."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from yaml.composer import ComposerError

from vigneron.errors import UserError, first_line, visible

LARGEST_FILE = 1_000_000
"""Characters in a file."""
MOST_NODES = 20_000
"""Keys and values in a file, with aliases expanded."""
DEEPEST = 100
"""Levels of nesting."""
LONGEST_KEY = 15
"""Characters of a number that is a key: longer ones can have the same hash, which makes a dictionary slow."""
LONGEST_NUMBER = 200
"""Characters. Reading a longer one takes time that grows with its square."""
LONG_NUMBER = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|[0-9][-+0-9_.:eE]*)")
"""What is refused as a number of more characters; other long values are text. Matches in one pass."""


class _Resolver:
    """Tries patterns of numbers and dates on short values only."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0] and len(value) > LONGEST_NUMBER:
            return f"tag:yaml.org,2002:{'int' if LONG_NUMBER.fullmatch(value) else 'str'}"
        return str(super().resolve(kind, value, implicit))  # type: ignore[misc]


class _Numbers(_Resolver):
    """YAML 1.2's numbers (`1e-5` is a float), of a bounded size."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = int(super().construct_yaml_int(_short(node)))  # type: ignore[misc]
        if number.bit_length() > 512:
            raise yaml.constructor.ConstructorError(None, None, "a number with more than 512 bits", node.start_mark)
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return float(super().construct_yaml_float(_short(node)))  # type: ignore[misc]


def _short(node: yaml.ScalarNode) -> yaml.ScalarNode:
    if len(node.value) > LONGEST_NUMBER:
        what = f"a number with more than {LONGEST_NUMBER} characters"
        raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
    return node


class Loader(_Numbers, yaml.SafeLoader):
    """Safe YAML. Duplicate keys and very large files are errors."""

    nodes = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        self.depth += 1
        if self.nodes > MOST_NODES:
            raise ComposerError(None, None, f"more than {MOST_NODES:,} keys and values", self.peek_event().start_mark)
        if self.depth > DEEPEST:
            raise ComposerError(None, None, "nested too deeply", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, count in Counter(key for key in keys if isinstance(key, Hashable)).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", node.start_mark)
        return super().construct_mapping(node, deep)


class _QuickLoader(_Numbers, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Of libyaml, where PyYAML was built with it."""


class Dumper(_Resolver, yaml.SafeDumper):
    """Writes what `Loader` reads: the text '1e-5' is quoted."""


_loader: Any
for _loader in (Loader, _QuickLoader):
    _loader.add_constructor("tag:yaml.org,2002:int", _loader.construct_yaml_int)
    _loader.add_constructor("tag:yaml.org,2002:float", _loader.construct_yaml_float)
for _side in (Loader, _QuickLoader, Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
        list("-+0123456789."),
    )
    # The resolver above also matches whole numbers: let the integer rule come first.
    for _rules in _side.yaml_implicit_resolvers.values():
        _rules.sort(key=lambda rule: rule[0] != "tag:yaml.org,2002:int")


def parse_yaml(text: str, where: str) -> Any:
    with _explained(text, where):
        return _data(text, Loader)


def quick_yaml(text: str, where: str) -> Any:
    """Like `parse_yaml` at ten times the speed, where PyYAML was built with libyaml: for lists of many runs.

    Checks the nesting first: libyaml crashes the process on deeply nested files.
    """
    if not hasattr(yaml, "CSafeLoader"):
        return parse_yaml(text, where)
    with _explained(text, where):
        depth = nodes = 0
        for event in yaml.parse(text, Loader=_QuickLoader):
            nodes += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if nodes > MOST_NODES or depth > DEEPEST:
                raise ComposerError(None, None, "too many keys and values, or nested too deeply", event.start_mark)
        return _data(text, _QuickLoader)


def _data(text: str, loader_class: Any) -> Any:
    loader = loader_class(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _Expanded().size(root) > MOST_NODES:
            raise ComposerError(None, None, "its aliases expand to too many values: write them out", root.start_mark)
        return loader.construct_document(root)
    finally:
        loader.dispose()


@contextmanager
def _explained(text: str, where: str) -> Iterator[None]:
    if len(text) > LARGEST_FILE:
        raise UserError(f"{where}: larger than {LARGEST_FILE:,} characters")
    try:
        yield
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, LookupError, AttributeError) as error:
        # ValueError: an invalid date or number; TypeError: a list as a key; the last two: `!!bool x`, `!!timestamp x`
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{where}{line}: not valid YAML: {visible(problem)}") from error


class _Expanded:
    """Number of keys and values of a graph of nodes with its aliases expanded. Visits every node once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def size(self, node: yaml.Node) -> int:
        known = self._sizes.get(id(node))
        if known == 0:
            raise ComposerError(None, None, "an alias refers to itself", node.start_mark)
        if known is None:
            self._sizes[id(node)] = 0
            known = 1 + sum(self.size(inner) for inner in _inside(node))
            self._sizes[id(node)] = known
        return known


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if key.tag.endswith((":int", ":float")) and len(key.value) > LONGEST_KEY:
                raise ComposerError(None, None, "a number as a key is too long", key.start_mark)
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
