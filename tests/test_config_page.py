"""docs/reference/config.md is generated from the config classes, and is up to date."""

import ast
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vigneron.config.keys import Key, keys_of
from vigneron.config.page import page
from vigneron.config.values import Positive, Strict, Url

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "config.md"


class Inner(Strict):
    """The inner section."""

    rate: Annotated[float, Field(gt=0)] = 1e-5
    """A learning
    rate."""


class One(Strict):
    kind: Literal["one"]


class Two(Strict):
    kind: Literal["two"]


class Outer(Strict):
    count: Positive | Literal["auto"] = "auto"
    """How many."""
    share: Annotated[float, Field(ge=0, le=1)]
    url: Url | None = None
    flag: bool = True
    inner: Inner = Inner(rate=0.5)
    optional: Inner | None = None
    """Perhaps."""
    either: Annotated[One | Two, Field(discriminator="kind")]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`, or `python -m vigneron.config.page`"


def test_keys_that_messages_name_are_keys() -> None:
    """A message of a section may name its keys without the section, if that is no other key's name."""
    text = PAGE.read_text(encoding="utf-8")
    rows = set(re.findall(r"^(?:\||###) `([\w.]+)[`:]", text, flags=re.M))
    sections = {key.rpartition(".")[0] for key in rows}
    keys, first = rows | sections, {key.partition(".")[0] for key in rows}
    unknown = {
        f"{file.name}: {name}"
        for file in (PAGE.parents[2] / "src" / "vigneron").rglob("*.py")
        if file.name != "page.py"
        for text in messages_of(file)
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)[`:=]", text)
        if name not in keys and (name.partition(".")[0] in first or not any(key.endswith(f".{name}") for key in keys))
    }
    assert unknown == {
        "metrics_page.py: metrics.jsonl",
        "refused.py: patch.dict",
        "sources.py: datasets.save_to_disk",
    }, "keys that are none"


def messages_of(file: Path) -> list[str]:
    """The texts of a module, without docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in texts if isinstance(node.value, str)]


def test_a_key_has_a_type_a_default_and_the_docstring_under_its_field() -> None:
    assert list(keys_of(Outer, "o.")) == [
        Key("o.count", ("int > 0", "auto"), "auto", "How many."),
        Key("o.share", ("0 ≤ float ≤ 1",), "required", ""),
        Key("o.url", ("URL", "null"), "null", ""),
        Key("o.flag", ("bool",), "true", ""),
        Key("o.inner", ("mapping",), "", "The inner section."),
        Key("o.inner.rate", ("float > 0",), "0.5", "A learning rate."),
        Key("o.optional", ("mapping", "null"), "null", "Perhaps."),
        Key("o.optional.rate", ("float > 0",), "1e-5", "A learning rate."),
        Key("o.either", ("one", "two"), "required", "", (One, Two)),
    ]
