"""One item by itself: whether a rubric could hold it, and what is wrong with it if not."""

import json
import re
from collections.abc import Mapping
from typing import Any

from vigneron.errors import UserError
from vigneron.rubric.model import AnyItem
from vigneron.rubric.read import parse_rubric

HERE = "categories.one.items[0]"


def checked_item(given: Mapping[str, Any]) -> AnyItem:
    """As it would be checked in a file, templates and patterns too. Everything wrong is one error, a line each."""
    whole = {"categories": {"one": {"items": [dict(given)]}}}
    try:
        rubric = parse_rubric(json.dumps(whole, allow_nan=False), "item", json=True)
    except UserError as error:
        lines = [re.sub(r"^item(, line \d+)?: ", "", line) for line in str(error).splitlines()]
        raise UserError("\n".join(line.replace(f"{HERE}.", "").replace(HERE, "the item") for line in lines)) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the item cannot be written as JSON: {error}") from error
    return rubric.categories["one"].items[0]
