"""Conversations as other tools write them, as columns of messages with `role` and `content`.

conversations                   ShareGPT's column, read as `messages`; its turns may have `from` and `value`
messages as JSON text           as a CSV file holds a list
function_call, role function    OpenAI's form before `tool_calls`, with `functions` in place of `tools`
weight                          OpenAI's: an assistant's turn with 0 is read, and not trained on
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vigneron.data.lines import DECODER, check_surrogates
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.message_forms import with_role_and_content

COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected")


def with_messages(row: Row, place: object) -> Row:
    """The row with all its conversations as messages with `role` and `content`."""
    if "conversations" in row and all(row.get(column) in (None, "", []) for column in COLUMNS):
        turns = _parsed(row["conversations"], "conversations", place)
        if isinstance(turns, list) and turns and isinstance(turns[0], dict):
            rest = {name: value for name, value in row.items() if name not in ("conversations", *COLUMNS)}
            row = {**rest, "messages": turns}
    elif type(row.get("messages")) is str and row["messages"].strip():
        row = {**row, "messages": _parsed(row["messages"], "messages", place)}
    foreign = [name for name, turns in row.items() if type(turns) is list and name in COLUMNS and not _are_plain(turns)]
    for column in foreign:
        try:
            row = _with_weights({**row, column: with_role_and_content(row[column], column)}, column)
        except UserError as error:
            raise UserError(f"data: {place}: {error}") from error
    return _with_tools(row) if "functions" in row else row


def _are_plain(turns: Sequence[Any]) -> bool:
    """Whether every turn has a role and a content, and nothing else."""
    for turn in turns:
        if type(turn) is not dict or len(turn) != 2 or "content" not in turn or turn.get("role") == "function":
            return False
    return True


def _parsed(given: Any, column: str, place: object) -> Any:
    if not isinstance(given, str):
        return given
    try:
        turns = DECODER.decode(given)
    except (ValueError, RecursionError):
        raise UserError(
            f"data: {place}: {column} is a text that is not JSON: give a list of messages, or its JSON text"
        ) from None
    check_surrogates({column: turns}, lambda: f"data: {place}: {column}")
    return turns


def _with_weights(row: Row, column: str) -> Row:
    """The row without weights. Turns of `messages` before the first that is trained on become the `prompt`, those up to
    the last the `completion`."""
    turns = row[column]
    if not any(isinstance(turn, dict) and "weight" in turn for turn in turns):
        return row
    answers = [at for at, turn in enumerate(turns) if isinstance(turn, dict) and turn.get("role") == "assistant"]
    weights = {at: _weight(turns[at], f"turn {at + 1} of {column}") for at in answers}
    trained, read = ([at for at in answers if weights[at] == weight] for weight in (1, 0))
    plain = [_without_weight(turn) for turn in turns]
    if column == "prompt" or not read:
        return {**row, column: plain}
    if not trained:
        raise UserError(f"every answer of {column} has `weight` 0: leave the conversation out")
    first, last = trained[0], trained[-1]
    between = [at for at in read if first < at < last]
    if column != "messages" or between or row.get("prompt") or row.get("completion"):
        raise UserError(
            f"turn {(between or read)[0] + 1} of {column} has `weight` 0, which is read only in `messages`, without a "
            "`prompt`, before all turns with 1 or after them: leave `weight` out, or leave the conversation out"
        )
    others = {name: value for name, value in row.items() if name != "messages"}
    return {**others, "prompt": plain[:first], "completion": plain[first : last + 1]}


def _weight(turn: Mapping[str, Any], where: str) -> int:
    weight = turn.get("weight")
    if weight is None:
        return 1
    if weight not in (0, 1):
        raise UserError(f"{where} has `weight` {weight!r:.40}: expected 0 or 1")
    return int(weight)


def _without_weight(turn: Any) -> Any:
    return {name: value for name, value in turn.items() if name != "weight"} if isinstance(turn, dict) else turn


def _with_tools(row: Row) -> Row:
    """OpenAI's `functions` as `tools`, where they are descriptions of functions."""
    functions = row["functions"]
    described = isinstance(functions, list) and all(isinstance(f, dict) and "name" in f for f in functions)
    if not functions or not described or row.get("tools") is not None:
        return row
    others = {name: value for name, value in row.items() if name != "functions"}
    return {**others, "tools": [{"type": "function", "function": function} for function in functions]}
