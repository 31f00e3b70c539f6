"""Write a rubric as a Vigneron file: only what differs from the defaults, multi-line strings as blocks."""

from typing import Any

import yaml

from vigneron.errors import UserError
from vigneron.rubric.formats.parts import json_text
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import parse_rubric
from vigneron.yaml_text import Dumper


class _Dumper(Dumper):
    """Multi-line strings as blocks."""

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def rubric_file_text(rubric: Rubric, *, json_form: bool, where: str = "the rubric") -> str:
    """Checked by reading it back."""
    data = {"version": rubric.version, **rubric.model_dump(mode="json", exclude_defaults=True)}
    categories: dict[str, Any] = data.pop("categories")
    data = {**data, "categories": {name: _ordered(category) for name, category in categories.items()}}
    if json_form:
        text = json_text(data)
    else:
        text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    if parse_rubric(text, where, json=json_form) != rubric:
        raise UserError(f"{where}: it does not survive a round trip through {'JSON' if json_form else 'YAML'}")
    return text


def _ordered(category: dict[str, Any]) -> dict[str, Any]:
    """With each item's name, description, weight, tags and flow first."""
    first = ("name", "description", "weight", "tags", "flow")
    items = [
        {**{key: item[key] for key in first if key in item}, **{k: v for k, v in item.items() if k not in first}}
        for item in category["items"]
    ]
    return {**{key: value for key, value in category.items() if key != "items"}, "items": items}
