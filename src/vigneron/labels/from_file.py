"""Completions to compare, from a dataset: `completions`, TRL's `chosen` and `rejected`, or `completion_a` and `_b`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from vigneron.data.dataset import read_rows
from vigneron.data.formats import is_conversation
from vigneron.data.texts import Row
from vigneron.errors import UserError
from vigneron.labels.items import Comparison, Found, compared, different, in_order

TWO = (("chosen", "rejected"), ("completion_a", "completion_b"))
NEEDED = "`completions` (a list), `chosen` and `rejected`, or `completion_a` and `completion_b`"


def comparisons_of_file(path: Path, *, kind: Literal["pairs", "best"], seed: int) -> Found:
    rows = read_rows(path)
    if not rows:
        raise UserError(f"data: '{path}' has no rows")
    found = Found()
    alike = 0
    for number, row in enumerate(_with_prompts(rows, path), start=1):
        here = f"data: '{path}', row {number}"
        prompt = _prompt(row, here)
        completions = [_in_form_of(prompt, each, here) for each in _completions(row, here)]
        items = _as_given(prompt, completions) if kind == "pairs" and len(completions) == 2 else None
        made = compared(prompt, completions, kind, seed) if items is None else items
        alike += not made
        found.items += made
    if not found.items:
        raise UserError(f"data: '{path}': in no row are there two different completions that say something")
    if alike:
        found.notices.append(f"'{path}': {alike} rows have no two different completions and are left out")
    found.items = in_order(found.items, seed)
    return found


def _as_given(prompt: Any, completions: Sequence[Any]) -> list[Comparison]:
    """Two stay in the file's order, so that it can be seen who agrees with it; shown they are shuffled."""
    return [Comparison(prompt, tuple(completions))] if len(different(completions)) == 2 else []


def _with_prompts(rows: list[Row], path: Path) -> list[Row]:
    """TRL's pairs may leave the prompt to what both texts begin with."""
    if all(row.get("chosen") and row.get("rejected") and row.get("prompt") in (None, "", []) for row in rows):
        from vigneron.rollout.pairs import read_pairs

        return read_pairs(rows, f"'{path}'")[0]
    return rows


def _prompt(row: Row, here: str) -> Any:
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if is_conversation(prompt) and prompt:
        return prompt
    if prompt in (None, "", []):
        raise UserError(f"{here} has no 'prompt'")
    raise UserError(f'{here}: prompt is neither a text nor a list of {{"role": …, "content": …}} messages')


def _completions(row: Row, here: str) -> list[Any]:
    if row.get("completions") not in (None, ""):
        return _listed(row["completions"], here)
    for names in TWO:
        if all(row.get(name) is not None for name in names):
            return [row[name] for name in names]
    raise UserError(f"{here} has no two completions: give {NEEDED}")


def _listed(given: Any, here: str) -> list[Any]:
    """In a CSV file the list is written as JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{here}: completions is not a list in JSON") from error
    if not isinstance(given, list) or len(given) < 2:
        raise UserError(f"{here}: completions is not a list of two or more")
    return given


def _in_form_of(prompt: Any, completion: Any, here: str) -> Any:
    """A conversation goes on with messages."""
    if isinstance(completion, str):
        return completion if isinstance(prompt, str) else [{"role": "assistant", "content": completion}]
    if not is_conversation(completion) or len(completion) != 1 or completion[0]["role"] != "assistant":
        raise UserError(f"{here}: a completion is neither a text nor one message of role 'assistant'")
    if isinstance(prompt, str):
        raise UserError(f"{here}: a completion is a message and the prompt a text: give both in one form")
    return completion
