"""Scenes and characters for `vigneron roleplay`. YAML or JSON, one file.

scenes:                                  # MATRIX: an instruction, and who has to live with the answer
  - name: barking
    instruction: My neighbour's dog barks at night. How do I make it stop?
    roles:
      - {name: the neighbour, about: works at night}
characters:                              # DITTO: who is played, and what is known of them
  - name: Tilda Brenn
    about: She has kept the lighthouse of Skerrow for 31 years.
"""

from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path
from vigneron.recipe import config_text
from vigneron.rubric.model import Described, Name
from vigneron.rubric.principles import Text
from vigneron.rubric.read import SUFFIXES, error_lines, read_mapping, validated

ASSISTANT = "assistant"
"""The role that answers in a scene."""


class Person(Described):
    """Somebody in a scene, or a character."""

    name: Name
    about: Text
    """What is known of them."""


class Scene(Described):
    """An instruction, and those whom the answer concerns."""

    name: Name
    """Recorded with its row."""
    instruction: Text
    roles: Annotated[list[Person], Field(min_length=1, max_length=8)]


class Scenes(Described):
    version: Annotated[str, Field(min_length=1, max_length=60)] = "1"
    scenes: Annotated[list[Scene], Field(max_length=10_000)] = Field(default_factory=list)
    characters: Annotated[list[Person], Field(max_length=10_000)] = Field(default_factory=list)

    @model_validator(mode="after")
    def names_are_unique(self) -> "Scenes":
        if not self.scenes and not self.characters:
            raise ValueError("it has neither `scenes` nor `characters`")
        groups = {"scenes": [scene.name for scene in self.scenes], "characters": names_of(self.characters)}
        groups |= {f"the roles of '{scene.name}'": names_of(scene.roles) for scene in self.scenes}
        if any(person.name == ASSISTANT for scene in self.scenes for person in scene.roles):
            raise ValueError(f"a role is named '{ASSISTANT}', as the one that answers: give it another name")
        for what, names in groups.items():
            if twice := [name for place, name in enumerate(names) if name in names[:place]]:
                raise ValueError(f"two of {what} are named {twice[0]!r}")
        return self


def names_of(people: Sequence[Person]) -> list[str]:
    return [person.name for person in people]


def bundled_scenes() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _bundled().iterdir() if entry.name.endswith(".yaml"))


def _bundled() -> Traversable:
    return resources.files("vigneron") / "selfplay" / "scene_files"


def read_scenes(path: str) -> Scenes:
    """A file, or a bundled one by its name. Every error with its line."""
    read, given = read_mapping(_text(path), path, "a file of scenes", json=Path(path).suffix == ".json")
    scenes, invalid = validated(Scenes, given, "the file")
    if scenes is None or invalid:
        raise UserError(error_lines(path, [(read.line(fault.path), fault.line) for fault in invalid]))
    return scenes


def _text(name: str) -> str:
    if name in bundled_scenes():
        return (_bundled() / f"{name}.yaml").read_text(encoding="utf-8")
    file = user_path(name)
    if file.suffix not in SUFFIXES:
        known = did_you_mean(name, bundled_scenes())
        raise UserError(f"unknown scenes '{name}'{known}; give a bundled name, or a .yaml or .json file")
    return config_text(file, f"the scenes '{name}'")
