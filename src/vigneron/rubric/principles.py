"""Principles (a constitution): what answers are criticised, revised and compared by. YAML or JSON, one file.

principles:
  - name: honest
    text: The answer says only what is true.
    critique: Name every claim that is not true.        # optional: the request for a critique
    revise: Rewrite the answer without these claims.    # optional: the request for a revision
"""

from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field, model_validator

from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path
from vigneron.recipe import config_text
from vigneron.rubric.model import Described, Name
from vigneron.rubric.read import SUFFIXES, error_lines, read_mapping, validated


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

    @model_validator(mode="after")
    def names_differ(self) -> "Principles":
        names = [principle.name for principle in self.principles]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two principles are named {repeated[0]!r}")
        return self


def bundled_principles() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _bundled().iterdir() if entry.name.endswith(".yaml"))


def _bundled() -> Traversable:
    return resources.files("vigneron") / "rubric" / "constitutions"


def read_principles(path: str | Path, *, only: str | None = None) -> list[Principle]:
    """The principles of a file, or of a bundled one by its name; `only` the one of that name."""
    found = parse_principles(_text(path), str(path), json=Path(path).suffix == ".json").principles
    if only is None:
        return found
    chosen = [principle for principle in found if principle.name == only]
    if not chosen:
        known = did_you_mean(only, [principle.name for principle in found])
        raise UserError(f"--principle: '{path}' has no principle '{only}'{known}")
    return chosen


def parse_principles(text: str, where: str, *, json: bool = False) -> Principles:
    """Every error with its line."""
    read, given = read_mapping(text, where, "a file of principles", json=json)
    principles, invalid = validated(Principles, given, "the file")
    if principles is None:
        raise UserError(error_lines(where, [(read.line(fault.path), fault.line) for fault in invalid]))
    return principles


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
