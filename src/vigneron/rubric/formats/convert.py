"""Convert between rubric formats, by way of a `Rubric`. Notices list what has no counterpart."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from vigneron.errors import UserError, did_you_mean
from vigneron.files import parse_json, user_path
from vigneron.recipe import config_text
from vigneron.rubric.formats import healthbench, openai_read, openai_write, verifiers
from vigneron.rubric.formats.parts import json_text
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import SUFFIXES, parse_rubric, read_rubric
from vigneron.rubric.yaml_positions import LARGEST_FILE
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


Format = Literal["vigneron", "openai", "healthbench", "verifiers"]
READS = {"openai": (".json",), "healthbench": (".jsonl",), "verifiers": (".json", ".toml")}
WRITES = {"vigneron": SUFFIXES, "openai": (".json",), "healthbench": (".jsonl",), "verifiers": (".json",)}


@dataclass(frozen=True)
class Options:
    category: str | None = None
    """The category to convert, if the target format has no categories."""
    model: str | None = None
    """The model of OpenAI's graders."""
    generic: bool = False
    """HealthBench: one item for all examples."""


def known_format(name: str, option: str) -> str:
    known = get_args(Format)
    if name not in known:
        raise UserError(f"{option}: unknown format '{name}'{did_you_mean(name, known)}")
    return name


def convert(path: Path, source: str, out: Path, target: str, options: Options) -> tuple[str, list[str]]:
    """The text of the new file, and notices."""
    source, target = known_format(source, "--from"), known_format(target, "--to")
    _check_suffix(out, WRITES[target], target)
    _check_options(source, target, options)
    rubric, notices = _read(path, source, options)
    text, more = _written(rubric, target, out, f"'{path}'", options)
    return text, [*dict.fromkeys([*notices, *more])]


def _check_options(source: str, target: str, options: Options) -> None:
    if options.category is not None and target not in ("openai", "verifiers"):
        raise UserError(f"--category has no effect with `--to {target}`: all categories are converted")
    if options.model is not None and target != "openai":
        raise UserError(f"--model has no effect with `--to {target}`: only OpenAI's graders have a model")
    if options.generic and source != "healthbench":
        raise UserError(f"--generic has no effect with `--from {source}`: it is for HealthBench files")


def _check_suffix(path: Path, wanted: tuple[str, ...], name: str) -> None:
    if path.suffix not in wanted:
        raise UserError(f"'{path}' must end in {' or '.join(wanted)} for the format {name}")


def _read(path: Path, source: str, options: Options) -> tuple[Rubric, list[str]]:
    where = f"'{path}'"
    if source == "vigneron":
        return read_rubric(path), []
    _check_suffix(path, READS[source], source)
    if source == "healthbench":
        from vigneron.data.sources import read_rows

        return healthbench.rubric_of(read_rows(path), where, generic=options.generic)
    given = _data(path, where)
    return openai_read.rubric_of(given, where) if source == "openai" else verifiers.rubric_of(given, where)


def _data(path: Path, where: str) -> Any:
    text = config_text(user_path(path), where)
    if len(text) > LARGEST_FILE:
        raise UserError(f"{where}: larger than {LARGEST_FILE:,} characters")
    if path.suffix == ".toml":
        return verifiers.read_toml(text, where)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON, or nested too deeply") from error


def _written(rubric: Rubric, target: str, out: Path, where: str, options: Options) -> tuple[str, list[str]]:
    if target == "vigneron":
        return rubric_file_text(rubric, json_form=out.suffix == ".json", where=where), []
    if target == "healthbench":
        return healthbench.text_of(rubric, where)
    write: Callable[[], tuple[dict[str, Any], list[str]]] = {
        "openai": lambda: openai_write.graders_of(rubric, where, category=options.category, model=options.model),
        "verifiers": lambda: verifiers.criteria_of(rubric, where, category=options.category),
    }[target]
    data, notices = write()
    return json_text(data), notices
