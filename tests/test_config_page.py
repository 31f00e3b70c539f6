"""docs/reference/config.md is generated from the config classes, and is up to date."""

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
