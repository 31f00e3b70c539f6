"""Messages in the forms that people have and templates take: text, a list of content parts, tool calls.

A template that cannot write a form drops it, or writes Python's notation of it; so what it can write is tried once.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from vigneron.errors import UserError
from vigneron.files import parse_json
from vigneron.policy.chat_template import TemplateError, render

Message = Mapping[str, Any]
NO_MESSAGES = 'must be a list of {"role": …, "content": …} messages'


def copied(value: Any) -> Any:
    """A deep copy, several times quicker than Python's for what JSON has."""
    kind = type(value)
    if kind is dict:
        return {key: copied(part) for key, part in value.items()}
    if kind is list:
        return [copied(part) for part in value]
    return value if kind in (str, int, float, bool) or value is None else deepcopy(value)


def is_message(value: Any) -> bool:
    """A role with a content: a text, or a list of parts; next to tool calls there may be none."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content, calls = value.get("content"), value.get("tool_calls")
    if calls is None and isinstance(content, str):
        return True
    if calls is not None and not (isinstance(calls, list) and all(_name(call) is not None for call in calls)):
        return False
    if isinstance(content, list):
        return bool(content) and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content)
    return isinstance(content, str) or (content is None and bool(calls))


SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""The roles of ShareGPT's turns."""


def with_role_and_content(turns: Sequence[Any], column: str) -> list[Any]:
    """Turns of ShareGPT, and OpenAI's of `function_call`, as messages. What is no turn stays as it is."""
    messages: list[Any] = []
    call = ""
    for number, turn in enumerate(turns, start=1):
        message = turn
        if isinstance(turn, dict) and {"from", "value"} <= turn.keys() and "role" not in turn:
            message = _of_sharegpt(turn, f"turn {number} of {column}")
        if isinstance(message, dict) and "function_call" in message:
            call = f"call{number:05}"  # Mistral's template wants nine characters
            message = _with_tool_call(message, call, f"turn {number} of {column}")
        elif isinstance(message, dict) and message.get("role") == "function":
            message = {**message, "role": "tool"} | ({"tool_call_id": call} if call else {})
        messages.append(message)
    return messages


def _of_sharegpt(turn: dict[str, Any], where: str) -> dict[str, Any]:
    speaker = turn["from"]
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise UserError(
            f"{where} is from {speaker!r:.40}: of ShareGPT's form the turns of human, gpt and system are read; write "
            "others with `role` and `content`, calls as `tool_calls`, results with the role 'tool'"
        )
    others = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {"role": SPEAKERS[speaker], "content": turn["value"], **others}


def _with_tool_call(message: dict[str, Any], call: str, where: str) -> dict[str, Any]:
    others = {name: value for name, value in message.items() if name != "function_call"}
    function = message["function_call"]
    if function is None:
        return others
    if _name(function) is None:
        raise UserError(f"{where} has a `function_call` without a `name`: give `name` and `arguments`")
    if message.get("tool_calls"):
        raise UserError(f"{where} has both `function_call` and `tool_calls`: keep one")
    return {"content": None, **others, "tool_calls": [{"id": call, "type": "function", "function": function}]}


def message_fault(values: Any, column: str) -> str:
    """What keeps a column from being a list of messages; names the turn."""
    if not isinstance(values, list):
        return f"{column} {NO_MESSAGES}"
    for turn, value in enumerate(values, start=1):
        if not is_message(value):
            return f"turn {turn} of {column} {_fault(value)}"
    return f"{column} {NO_MESSAGES}"


def _fault(value: Any) -> str:
    if not isinstance(value, dict):
        return 'is no object: give {"role": …, "content": …}'
    if {"from", "value"} <= set(value) and "role" not in value:
        return "has ShareGPT's keys: rename `from` to `role` (human: user, gpt: assistant) and `value` to `content`"
    if not isinstance(value.get("role"), str):
        return "has a `role` that is no text" if value.get("role") is not None else "has no `role`"
    content, calls = value.get("content"), value.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(_name(call) is not None for call in calls)):
        return "has `tool_calls` that are no list of functions, each with a `name`"
    if content is None:
        return "has no `content`"
    if isinstance(content, list):
        return "has a content part without a `type`" if content else "has an empty list as `content`"
    return "has a `content` that is neither a text nor a list of parts"


def are_messages(values: Sequence[Any]) -> bool:
    for value in values:
        plain = type(value) is dict and len(value) == 2  # a role and a text: most messages
        if plain and type(value.get("role")) is str and type(value.get("content")) is str:
            continue
        if not is_message(value):
            return False
    return True


def message_text(message: Message) -> str:
    """A message's content as text, with its tool calls as lines of JSON."""
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):
        return content
    text = _parts_text(content) if isinstance(content, list) else "" if content is None else str(content)
    calls = [json.dumps(_function(call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join([*([text] if text or not calls else []), *calls])


def call_names(message: Message) -> list[str]:
    """The names of the functions that a message calls."""
    return [str(_name(call)) for call in message.get("tool_calls") or ()]


def with_content(message: Message, content: Any) -> dict[str, Any]:
    """The message with another content, as parts if it had parts."""
    parts = isinstance(message.get("content"), list) and isinstance(content, str)
    return {**message, "content": [{"type": "text", "text": content}] if parts else content}


def with_last_arguments(message: Message, mark: str) -> dict[str, Any]:
    """The message with a mark as the arguments of its last tool call."""
    *others, last = message["tool_calls"]
    given: Any = {mark: mark}
    if isinstance(_function(last).get("arguments"), str):
        given = json.dumps(given, ensure_ascii=False)
    return {**message, "tool_calls": [*others, _with_arguments(last, given)]}


def writable(tokenizer: Any, messages: Sequence[Message]) -> list[Message]:
    """The messages in forms that the template can write; raises for those that it cannot."""
    return [_writable(tokenizer, message, turn) for turn, message in enumerate(messages, start=1)]


def _writable(tokenizer: Any, message: Message, turn: int) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise UserError(f"turn {turn} has a content part of type 'text' without `text`: add it")
            if part.get("type") != "text":
                raise UserError(f"turn {turn} has a content part of type '{part.get('type')}': only text is supported")
        if "parts" not in _contents(tokenizer, _template(tokenizer)):
            raise UserError(
                f"turn {turn} has content parts, which the model's chat template cannot write: give `content` as a text"
            )
    calls = message.get("tool_calls")
    if not calls:
        return message
    forms = _calls(tokenizer, _template(tokenizer))
    if not forms:
        raise UserError(f"turn {turn} has tool calls, which the model's chat template cannot write: remove them")
    given = "text" if isinstance(_function(calls[-1]).get("arguments"), str) else "object"
    form = given if any(arguments == given for arguments, _ in forms) else forms[0][0]
    changed = {**message, "tool_calls": [_as(call, form, turn) for call in calls]}
    if not content:
        changed["content"] = next(empty for arguments, empty in forms if arguments == form)
    return changed


def needs_parts(tokenizer: Any) -> bool:
    """Whether the template writes content parts, and nothing for a content that is a text."""
    template = _template(tokenizer)
    return "type" in template and _contents(tokenizer, template) == ("parts",)


def as_parts(messages: Sequence[Message]) -> list[Message]:
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


@lru_cache(maxsize=16)
def _contents(tokenizer: Any, template: str) -> tuple[str, ...]:
    """The forms of content that the template writes: `text`, `parts`."""
    probe = [{"role": "user", "content": "probe-u"}, {"role": "assistant", "content": "probe-a"}]
    text, parts = (_tried(tokenizer, messages) for messages in (probe, as_parts(probe)))
    takes_text = text is not None and "probe-u" in text
    writes_parts = parts is not None and "probe-u" in parts and "probe-a" in parts
    as_objects = any(str(parts).count(key) > str(text).count(key) for key in ("'type'", '"type"'))
    takes_parts = writes_parts and not as_objects and (text == parts or not takes_text)
    return (*(["text"] if takes_text else []), *(["parts"] if takes_parts else []))


@lru_cache(maxsize=16)
def _calls(tokenizer: Any, template: str) -> tuple[tuple[str, str | None], ...]:
    """What the template takes in tool calls: arguments as an `object` or a JSON `text`, each with a content for turns
    that have none. Empty: it writes no tool calls."""
    forms: list[tuple[str, str | None]] = []
    for arguments, given in (("object", {"probe_key": "probe-v"}), ("text", '{"probe_key": "probe-v"}')):
        texts = {content: _tried(tokenizer, _call_probe(given, content)) for content in (None, "", "probe-c")}
        complete = texts[""] or texts["probe-c"] or ""
        for empty in (None, ""):
            text = texts[empty] or ""
            everything = all(part in text for part in ("probe_name", "probe_key", "probe-v", "probe-r"))
            quoted_twice = r"\"probe_key" in text
            writes_none = text.count("None") > complete.count("None")  # for the content that is missing
            if everything and not quoted_twice and not writes_none:
                forms.append((arguments, empty))
                break
    return tuple(forms)


def _call_probe(arguments: Any, content: str | None) -> list[Message]:
    call = {"id": "callprobe", "type": "function", "function": {"name": "probe_name", "arguments": arguments}}
    return [
        {"role": "user", "content": "probe-u"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "name": "probe_name", "tool_call_id": "callprobe", "content": "probe-r"},
        {"role": "assistant", "content": "probe-a"},
    ]


def _tried(tokenizer: Any, messages: Sequence[Message]) -> str | None:
    try:
        return render(tokenizer, [(messages, False)])[0]
    except TemplateError:
        return None


def _as(call: Any, form: str, turn: int) -> Any:
    given = _function(call).get("arguments")
    if isinstance(given, str):
        try:
            parsed = parse_json(given)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise UserError(f"turn {turn}: the arguments of the tool call '{_name(call)}' are not a JSON object")
        given = parsed if form == "object" else given
    elif form == "text":
        given = json.dumps(given, ensure_ascii=False)
    return _with_arguments(call, given)


def _with_arguments(call: Any, given: Any) -> Any:
    if "function" in call:
        return {**call, "function": {**call["function"], "arguments": given}}
    return {**call, "arguments": given}


def _function(call: Any) -> dict[str, Any]:
    inner: dict[str, Any] = call["function"] if isinstance(call.get("function"), dict) else call
    return inner


def _name(call: Any) -> str | None:
    name = _function(call).get("name") if isinstance(call, dict) else None
    return name if isinstance(name, str) else None


def _parts_text(parts: Sequence[Any]) -> str:
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _template(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "chat_template", None))
