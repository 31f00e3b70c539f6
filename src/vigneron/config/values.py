"""Types of config values: bounded numbers, URLs, paths of functions."""

import re
from string import Formatter
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

STORED = "stored"
"""Key of the validation context: the config is of a run's folder, so checks that later versions added are skipped."""


def as_before(given: Any, info: ValidationInfo, **defaults: Any) -> Any:
    """With what runs of earlier versions did, where the config of a run's folder lacks a key with a newer default."""
    stored = (info.context or {}).get(STORED, False)
    return {**defaults, **given} if stored and isinstance(given, dict) else given


Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


def plain_url(url: str) -> str:
    """A URL without credentials. The error does not repeat the value, which may contain a secret."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises if it is not a number)
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError("should be a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "should have no user, password or query: it is saved in the run's folder "
            "(set API keys in the environment, as OPENAI_API_KEY)"
        )
    return url


Url = Annotated[str, AfterValidator(plain_url)]


def dotted_path(path: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", path):
        raise ValueError(f"should have the form module:function, not {path!r}")
    return path


def template_columns(template: str) -> list[str]:
    """The columns that a template such as `{rules} {prompt}` takes from a row."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ValueError(f"is not a template: {error} (write {{{{ or }}}} for a brace)") from None
    return list(dict.fromkeys(re.split(r"[.\[]", field)[0] for field in fields))


class Strict(BaseModel):
    """Rejects unknown keys, strings in place of numbers, and infinite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
