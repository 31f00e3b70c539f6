"""TRL's formats for demonstrations, as rows with a `prompt` and an `answer`.

    prompt + answer           Vigneron's: the answer that the model should give to the prompt
    prompt + completion       text that continues the prompt exactly where it ends; or messages
    messages                  a conversation: its last assistant turn is the answer, all turns before it the prompt

`completion` and `messages` stay in the row: they determine which turns are trained on, and whether a space is added.
"""

from collections.abc import Sequence
from typing import Any

from vigneron.data.foreign_messages import with_messages
from vigneron.data.prompts import Row, completion_text
from vigneron.errors import UserError, did_you_mean
from vigneron.policy.message_forms import SPEAKERS, are_messages, message_fault, message_text

ROLES = ("system", "developer", "user", "assistant", "tool")


def with_prompts_and_answers(rows: Sequence[Row], where: str) -> list[Row]:
    """Every row with `prompt` and `answer`. Errors name the row by its number."""
    places = (f"{where}, row {number}" for number in range(1, len(rows) + 1))
    return [with_prompt_and_answer(with_messages(row, place), place) for row, place in zip(rows, places, strict=True)]


def without_demonstrations(row: Row) -> Row:
    """The row without its answer, for a parent to answer."""
    return {name: value for name, value in row.items() if name not in ("messages", "completion", "answer")}


def conversation_of(row: Row) -> tuple[list[dict[str, Any]], int]:
    """The messages of a row up to its answer, and the index of the first that may be trained on."""
    messages, completion = row.get("messages"), row.get("completion")
    if messages is not None:
        return list(messages[: last_answer(messages) + 1]), 0
    answers = completion if is_conversation(completion) else row["answer"]
    last = answers[-1] if is_conversation(answers) and answers else None
    last = last or {"role": "assistant", "content": completion_text(row["answer"])}
    conversation = [*row["prompt"], last]
    return conversation, len(conversation) - (len(completion) if isinstance(completion, list) else 1)


def is_continued(messages: Sequence[dict[str, Any]], first: int) -> bool:
    """Whether the answer goes on after its own beginning, an assistant's message at the end of the prompt."""
    if not first or messages[first - 1]["role"] != "assistant" or messages[first]["role"] != "assistant":
        return False
    if first < len(messages) - 1:
        raise UserError(
            "the prompt ends with an assistant's message, which the answer continues, and more turns follow: join both "
            "messages"
        )
    return True


def answered(row: Row, completion: Any) -> Row:
    """The prompt of a row (`prompt_of`) with a completion as its answer. A text follows the prompt's text directly. A
    conversation is kept whole: the model's turns are its answers, and the turns between them are read."""
    if isinstance(row["prompt"], str):
        return {**row, "completion": completion, "answer": completion}
    if not isinstance(completion, list) or len(completion) == 1:
        return {**row, "answer": completion}
    before = [*row["prompt"], *completion[:-1]]
    return {**row, "prompt": before, "completion": completion, "answer": message_text(completion[-1])}


def is_conversation(value: Any) -> bool:
    return isinstance(value, list) and are_messages(value)


def last_answer(messages: Sequence[dict[str, Any]]) -> int:
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "assistant":
            return at
    return -1


def with_prompt_and_answer(row: Row, place: object) -> Row:
    """The row with `prompt` and `answer`."""
    messages, completion = row.get("messages"), row.get("completion")
    if messages is not None:
        column, (prompt, answer) = "messages", _of_messages(messages, place)
    elif completion is not None:
        column, (prompt, answer) = "completion", _of_completion(row.get("prompt"), completion, place)
    else:
        return row
    own_prompt, own_answer = row.get("prompt"), row.get("answer")
    if own_answer is not None and own_answer != answer:
        raise UserError(f"data: {place}: `answer` and `{column}` contradict each other: remove one")
    if messages is not None and own_prompt is not None and own_prompt != prompt:
        raise UserError(f"data: {place}: `prompt` and `messages` contradict each other: remove one")
    read_before = own_answer is not None and own_prompt is not None  # rows saved by a run
    return row if read_before else {**row, "prompt": prompt, "answer": answer}


def _of_messages(messages: Any, place: object) -> tuple[Any, str]:
    if not is_conversation(messages):
        raise UserError(f"data: {place}: {message_fault(messages, 'messages')}")
    last = last_answer(messages)
    if last < 0:
        refuse_unknown_roles(messages, f"data: {place}: messages")
        raise UserError(f"data: {place}: messages has no turn of role 'assistant' to train on: add one")
    if messages[0]["role"] == "assistant":
        raise UserError(f"data: {place}: messages begins with role 'assistant': put a turn of role 'user' before it")
    _refuse_empty(messages[: last + 1], "messages", place)
    return messages[:last], message_text(messages[last])


def _of_completion(prompt: Any, completion: Any, place: object) -> tuple[Any, str]:
    if isinstance(completion, str):
        if not completion.strip():
            raise UserError(f"data: {place}: the completion is empty: remove the row or fill it in")
        return prompt, completion
    if isinstance(completion, list) and not is_conversation(completion):
        raise UserError(f"data: {place}: {message_fault(completion, 'completion')}")
    if not isinstance(completion, list):
        raise UserError(f'data: {place}: completion must be a text or a list of {{"role": …, "content": …}} messages')
    if prompt in (None, "", []):
        raise UserError(
            f"data: {place}: completion is a list of messages, and the row has no `prompt`: add it, or name a whole "
            "conversation `messages`"
        )
    if not is_conversation(prompt):
        raise UserError(
            f"data: {place}: completion is a list of messages and prompt is not: use the same form for both"
        )
    if not completion or completion[-1]["role"] != "assistant":
        raise UserError(f"data: {place}: completion does not end with a turn of role 'assistant': add one")
    _refuse_empty(completion, "completion", place)
    return [*prompt, *completion[:-1]], message_text(completion[-1])


def refuse_unknown_roles(messages: Sequence[dict[str, Any]], where: str) -> None:
    """Many templates render any role, so a typo would be trained on."""
    for turn, message in enumerate(messages, start=1):
        role = message["role"]
        if role not in ROLES:
            known = SPEAKERS.get(role.lower())
            meant = did_you_mean(role, ROLES) if known is None else f" (did you mean '{known}'?)"
            raise UserError(f"{where}, turn {turn}: unknown role '{role}'{meant}")


def _refuse_empty(messages: Sequence[dict[str, Any]], column: str, place: object) -> None:
    for number, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            continue
        content = message.get("content")
        if not (content if type(content) is str else "").strip() and not message_text(message).strip():
            raise UserError(
                f"data: {place}: turn {number} of {column} is an empty answer: remove the row or fill it in"
            )
