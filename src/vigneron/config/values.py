"""What a key may hold: numbers with bounds, addresses, paths to functions."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


def plain_url(url: str) -> str:
    """An address and nothing else: what is refused is not repeated, it may hold a secret."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError("should be a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "should hold no user, password or query: it is written into the run's folder "
            "(a key goes into the environment, as OPENAI_API_KEY)"
        )
    return url


Url = Annotated[str, AfterValidator(plain_url)]


def dotted_path(path: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", path):
        raise ValueError(f"should be of the form module:function, not {path!r}")
    return path


class Strict(BaseModel):
    """Unknown keys are refused, and a text is not a number; neither is infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
