"""Parse YAML or JSON into data and a node graph that has the line of every key."""

from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError, loads
from typing import Any, NoReturn

import yaml
from yaml.composer import ComposerError

from vigneron.errors import UserError, first_line
from vigneron.rubric.fences import one_line
from vigneron.validation import Path, format_path
from vigneron.yaml_text import LARGEST_FILE, MOST_NODES, Loader

TAG = "tag:yaml.org,2002:"
Refused = tuple[int, str]
"""A line and its error."""
PLAIN = {TAG + name for name in ("str", "int", "float", "bool", "null", "seq", "map")}
NON_STRINGS = {TAG + name for name in ("int", "float", "bool", "null", "timestamp")}


@dataclass(frozen=True)
class ParsedFile:
    """A file's data, with the positions of its keys."""

    data: Any
    root: yaml.Node | None

    def line(self, path: Path, inside: int | None = None) -> int:
        """The line of the last existing part of a path; `inside`: a line within the block string there."""
        node, line = self.root, 1
        for part in path:
            key, node = _step(node, part)
            if key is None:
                return line
            line = _line(key)
        if inside is not None and isinstance(node, yaml.ScalarNode) and node.style == "|":
            return _line(node) + inside
        return line


def read_text(text: str, where: str, *, json: bool) -> ParsedFile:
    """All syntax errors are raised together, one per line."""
    if len(text) > LARGEST_FILE:
        raise UserError(f"{where}: larger than {LARGEST_FILE:,} characters")
    data = _json(text, where) if json else None
    try:
        # In valid JSON tabs are only between tokens; YAML needs spaces there.
        root = yaml.compose(text.replace("\t", " ") if json else text, Loader=Loader)
        if root is None:
            return ParsedFile(None, None)
        errors = sorted(set(_Walk().refused(root)))
        if errors:
            raise UserError("\n".join(f"{where}, line {line}: {one_line(what)}" for line, what in errors))
        return ParsedFile(data if json else Loader("").construct_document(root), root)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        _raise_unreadable(error, text, where)


def _json(text: str, where: str) -> Any:
    try:
        return loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except JSONDecodeError as error:
        raise UserError(f"{where}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _raise_unreadable(error: Exception, text: str, where: str) -> NoReturn:
    """The line is that of the error's mark, or follows from the number of characters before it."""
    mark = getattr(error, "problem_mark", None)
    before = getattr(error, "position", None)
    number = mark.line + 1 if mark else text.count("\n", 0, before) + 1 if isinstance(before, int) else None
    problem = getattr(error, "problem", None) or first_line(error)
    raise UserError(f"{where}{f', line {number}' if number else ''}: not valid YAML: {one_line(problem)}") from error


class _Walk:
    """Walks the node graph, following aliases, up to a size limit."""

    def __init__(self) -> None:
        self.nodes = self.characters = 0

    def refused(self, node: yaml.Node, path: Path = (), above: frozenset[int] = frozenset()) -> Iterator[Refused]:
        """Yields repeated keys and tags that are not plain data. Converts dates and keys to strings."""
        self.nodes += 1
        self.characters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if id(node) in above:
            raise ComposerError(None, None, "an alias contains itself", node.start_mark)
        if self.nodes > MOST_NODES or self.characters > LARGEST_FILE:
            raise ComposerError(None, None, "its aliases expand to too much data: write it out", node.start_mark)
        if node.tag == TAG + "timestamp":
            node.tag = TAG + "str"
        if node.tag not in PLAIN:
            yield _line(node), f"{_name(path)}: '{node.tag.replace(TAG, '!!')}' is not allowed: plain data only"
        above = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            for place, value in enumerate(node.value):
                yield from self.refused(value, (*path, place), above)
        elif isinstance(node, yaml.MappingNode):
            yield from _refused_keys(node, path)
            for key, value in node.value:
                yield from self.refused(value, (*path, str(key.value)), above)


def _refused_keys(node: yaml.MappingNode, path: Path) -> Iterator[Refused]:
    first: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag in NON_STRINGS:
            key.tag = TAG + "str"
        if key.tag == TAG + "merge":
            yield _line(key), f"{_name(path)}: `<<` is not supported: write the keys out"
        elif key.tag != TAG + "str":
            yield _line(key), f"{_name(path)}: a key must be a string"
        elif key.value in first:
            name = format_path((*path, key.value))
            yield _line(key), f"duplicate key '{name}', first in line {first[key.value]}"
        else:
            first[key.value] = _line(key)


def _step(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The key node and the value node of the next part of a path."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), (None, None))
    return None, None


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _name(path: Path) -> str:
    return format_path(path) or "the rubric"
