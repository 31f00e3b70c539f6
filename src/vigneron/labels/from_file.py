"""Comparisons from a dataset: `completions`, TRL's `chosen` and `rejected`, or `completion_a` and `completion_b`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.labels.items import (
    Collected,
    Comparison,
    distinct,
    in_random_order,
    make_comparisons,
    reference_answer,
)

TWO = (("chosen", "rejected"), ("completion_a", "completion_b"))
NEEDED = "`completions` (a list), `chosen` and `rejected`, or `completion_a` and `completion_b`"


def comparisons_of_file(path: Path, *, kind: Literal["pairs", "best"], seed: int) -> Collected:
    rows = read_rows(path)
    if not rows:
        raise UserError(f"data: '{path}' has no rows")
    collected = Collected()
    skipped = 0
    for number, row in enumerate(_with_prompts(rows, path), start=1):
        here = f"data: '{path}', row {number}"
        prompt = _prompt(row, here)
        completions = [_same_format(prompt, each, here) for each in _completions(row, here)]
        if kind == "pairs" and len(completions) == 2:
            items = _in_file_order(prompt, completions, row.get("tools") or None)
        else:
            items = make_comparisons(prompt, completions, kind, seed, row.get("tools") or None)
        skipped += not items
        answer = reference_answer(row.get("answer"))
        collected.items += [replace(item, answer=answer) for item in items]
    if not collected.items:
        raise UserError(f"data: '{path}': no row has two different non-empty completions")
    if skipped:
        collected.notices.append(f"'{path}': {skipped} rows without two different completions are left out")
    collected.items = in_random_order(collected.items, seed)
    return collected


def _in_file_order(prompt: Any, completions: Sequence[Any], tools: Any) -> list[Comparison]:
    """A pair keeps the file's order, so that agreement with the file can be measured; the page shuffles it."""
    return [Comparison(prompt, tuple(completions), tools=tools)] if len(distinct(completions)) == 2 else []


def _with_prompts(rows: list[Row], path: Path) -> list[Row]:
    """In TRL's pairs the prompt may be implicit: the common prefix of both texts."""
    if all(row.get("chosen") and row.get("rejected") and row.get("prompt") in (None, "", []) for row in rows):
        from vigneron.data.pairs import read_pairs

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
    raise UserError(f'{here}: prompt is neither a string nor a list of {{"role": …, "content": …}} messages')


def _completions(row: Row, here: str) -> list[Any]:
    if row.get("completions") not in (None, ""):
        return _completion_list(row["completions"], here)
    for names in TWO:
        if all(row.get(name) is not None for name in names):
            return [row[name] for name in names]
    raise UserError(f"{here} has no two completions: expected {NEEDED}")


def _completion_list(value: Any, here: str) -> list[Any]:
    """In a CSV file the list is written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{here}: completions is not a JSON list") from error
    if not isinstance(value, list) or len(value) < 2:
        raise UserError(f"{here}: completions is not a list of two or more")
    return value


def _same_format(prompt: Any, completion: Any, here: str) -> Any:
    """The completion in the prompt's format: a string, or a list with one assistant message or a conversation."""
    if isinstance(completion, str):
        return completion if isinstance(prompt, str) else [{"role": "assistant", "content": completion}]
    ends = (completion[0], completion[-1]) if is_conversation(completion) and completion else ()
    if not ends or any(message["role"] != "assistant" for message in ends):
        raise UserError(
            f"{here}: a completion is neither a string nor one message of role 'assistant', nor a conversation that "
            "begins and ends with one"
        )
    if isinstance(prompt, str):
        raise UserError(f"{here}: the completion is a message and the prompt a string: use one format for both")
    return completion
