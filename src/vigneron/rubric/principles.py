"""Principles (a constitution): what answers are criticised, revised and compared by. YAML or JSON, one file.

principles:
  - name: honest
    text: The answer says only what is true.
    critique: Name every claim that is not true.        # optional: the request for a critique
    revise: Rewrite the answer without these claims.    # optional: the request for a revision
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path
from vigneron.recipe import config_text
from vigneron.rubric.model import Described, Name
from vigneron.rubric.read import SUFFIXES, error_lines, read_mapping, validated
from vigneron.validation import FieldError


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


Text = Annotated[str, Field(min_length=1, max_length=4_000), AfterValidator(_not_blank)]


class Principle(Described):
    """One principle."""

    name: Name
    """Unique in the file. Recorded with every row that it made."""
    text: Text
    """What a good answer does. Part of every prompt."""
    critique: Text | None = None
    """Request for a critique by this principle. None: the built-in one."""
    revise: Text | None = None
    """Request for a revision. None: the built-in one."""


class Principles(Described):
    version: Annotated[str, Field(min_length=1, max_length=60)] = "1"
    principles: Annotated[list[Principle], Field(min_length=1, max_length=1_000)]


def bundled_principles() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _bundled().iterdir() if entry.name.endswith(".yaml"))


def _bundled() -> Traversable:
    return resources.files("vigneron") / "rubric" / "constitutions"


def read_principles(path: str | Path, *, only: str | None = None) -> list[Principle]:
    """The principles of a file, or of a bundled one by its name; `only` the one of that name."""
    principles = parse_principles(_text(path), str(path), json=Path(path).suffix == ".json").principles
    if only is None:
        return principles
    chosen = [principle for principle in principles if principle.name == only]
    if not chosen:
        known = did_you_mean(only, [principle.name for principle in principles])
        raise UserError(f"--principle: '{path}' has no principle '{only}'{known}")
    return chosen


def parse_principles(text: str, where: str, *, json: bool = False) -> Principles:
    """Every error with its line."""
    read, given = read_mapping(text, where, "a file of principles", json=json)
    principles, invalid = validated(Principles, given, "the file")
    invalid += _repeated_names(given)
    if principles is None or invalid:
        raise UserError(error_lines(where, [(read.line(fault.path), fault.line) for fault in invalid]))
    return principles


def _repeated_names(given: Mapping[str, Any]) -> list[FieldError]:
    """At the line of the second principle of a name."""
    listed = given.get("principles")
    names = [
        each.get("name") if isinstance(each, Mapping) else None for each in (listed if isinstance(listed, list) else [])
    ]
    return [
        FieldError(("principles", place, "name"), f"principles[{place}].name: two principles are named {name!r}")
        for place, name in enumerate(names)
        if isinstance(name, str) and name in names[:place]
    ]


def principles_text(principles: Sequence[Principle], notes: Sequence[str]) -> str:
    """A file of principles, each under a comment of one line."""
    entries = []
    for principle, note in zip(principles, notes, strict=True):
        entry = [principle.model_dump(exclude_none=True)]
        body = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=110)
        entries.append("".join(f"  {line}\n" for line in [f"# {note}", *body.splitlines()]))
    return 'version: "1"\nprinciples:\n' + "".join(entries)


def _text(path: str | Path) -> str:
    name = str(path)
    if name in bundled_principles():
        return (_bundled() / f"{name}.yaml").read_text(encoding="utf-8")
    file = user_path(path)
    if file.suffix not in SUFFIXES:
        known = did_you_mean(name, bundled_principles())
        raise UserError(f"unknown principles '{name}'{known}; give a bundled name, or a .yaml or .json file")
    return config_text(file, f"the principles '{name}'")
