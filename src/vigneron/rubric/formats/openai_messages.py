"""Convert the messages of OpenAI's model graders. The two calls of a judge item become one conversation: the critique
prompt as instructions to think first, then the score prompt, then the criterion with question and response.

Messages of this form convert back to the same item. Any others become the score prompt of a judge item.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vigneron.rubric.formats.parts import NoCounterpart
from vigneron.rubric.model import AnyItem, JudgeItem, VerifyItem
from vigneron.rubric.prompts import COMPARE, SCORE, SCORE_DIRECTLY

PATH = r"[A-Za-z]\w*(?:\.[A-Za-z]\w*|\[\d+\])*"
ANSWER = "{{ sample.output_text }}"
QUESTION = "{{ item.prompt }}"


def to_vigneron(text: str) -> str:
    """A template with Vigneron's variables, from one with OpenAI's."""

    def replacement(inner: str) -> str:
        variable = inner.strip()
        if variable == "sample.output_text":
            return "{{ response }}"
        if variable == "item.prompt":
            return "{{ question }}"
        column = re.fullmatch(rf"item\.({PATH})", variable, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{{{{{inner}}}}}` has no counterpart in a rubric")
        return f"{{{{ row.{column[1]} }}}}"

    plain(replace_outputs(text, lambda inner: ""), ("{{", "{%", "{#"))
    return replace_outputs(text, replacement)


def to_openai(text: str, item: AnyItem) -> str:
    """A template with OpenAI's variables, from one with Vigneron's."""
    own = {"item.name": item.name, "item.description": item.description}

    def replacement(inner: str) -> str:
        variable = inner.strip()
        if variable == "response":
            return ANSWER
        if variable == "question":
            return QUESTION
        if variable in own:
            return plain(own[variable])
        bracketed = re.sub(r"""\[(["'])([A-Za-z]\w*)\1\]""", r".\2", variable)
        column = re.fullmatch(rf"row\.({PATH})", bracketed, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{{{{{inner}}}}}` has no counterpart in OpenAI's graders")
        return f"{{{{ item.{column[1]} }}}}"

    plain(replace_outputs(text, lambda inner: ""), ("{{", "{%", "{#"))
    return replace_outputs(text, replacement)


def replace_outputs(text: str, replacement: Callable[[str], str]) -> str:
    """The text with every `{{ … }}` replaced."""
    parts, at = [], 0
    while (start := text.find("{{", at)) >= 0 and (end := text.find("}}", start + 2)) >= 0:
        parts += [text[at:start], replacement(text[start + 2 : end])]
        at = end + 2
    return "".join([*parts, text[at:]])


def plain(text: str, marks: tuple[str, ...] = ("{{",)) -> str:
    """The text, if neither format would read it as a template."""
    for mark in marks:
        if mark in text:
            raise NoCounterpart(f"it contains `{mark}`, which begins a template")
    return text


CRITIC = "Before you score, criticise the response as follows.\n\n"
ASK = "Give a score from 0 to 1: 0 is not met at all, 1 is fully met."
CRITIC_OF_A_PROMPT = (
    "Below stands how a response is scored. Do not score it. Say what in the response speaks for a high score and what "
    "against it, with quotes.\n\n"
)
BODY = "Criterion: {name}\n{description}\n\n<question>\n{question}\n</question>\n\n<response>\n{response}\n</response>"
TRUTH = "\n\n<truth>\n{truth}\n</truth>"
PARTS = ("input_text", "output_text", "text")


def messages_of(item: JudgeItem | VerifyItem) -> list[dict[str, str]]:
    body = BODY.format(name=item.name, description=plain(item.description), question=QUESTION, response=ANSWER)
    if isinstance(item, VerifyItem):
        column = to_openai(f"{{{{ row.{item.truth} }}}}", item)
        systems, body = [to_openai(item.score or COMPARE, item)], body + TRUTH.format(truth=column)
    else:
        critic = [] if item.critique is None else [CRITIC + to_openai(item.critique, item)]
        systems = [*critic, to_openai(item.score or (SCORE if critic else SCORE_DIRECTLY), item)]
    messages = [{"role": "system", "content": text} for text in systems]
    return [*messages, {"role": "user", "content": f"{body}\n\n{ASK}"}]


def item_of(name: str, messages: Any, *, about: str = "") -> dict[str, Any]:
    """`about` is appended to the score prompt."""
    texts = texts_of(messages)
    return (not about and _judge_item(name, texts)) or _prompt_item(name, texts, about)


def texts_of(messages: Any) -> list[tuple[str, str]]:
    """Role and text of each message. Images and audio have no counterpart."""
    if not isinstance(messages, list) or not messages:
        raise NoCounterpart("its `input` is not a list of messages")
    return [_text_of(message) for message in messages]


def _text_of(message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise NoCounterpart("its `input` is not a list of messages")
    content = message.get("content")
    parts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in PARTS else part
        if not isinstance(text, str):
            raise NoCounterpart("it has a message that is not text")
        parts.append(text)
    return str(message.get("role")), "\n".join(parts)


def _judge_item(name: str, texts: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    if [role for role, _ in texts[-2:]] != ["system", "user"] or len(texts) > 3:
        return None
    criterion = _criterion(texts[-1][1])
    if criterion is None:
        return None
    description, truth = criterion
    common = {"name": name, "description": description}
    score = texts[-2][1]
    if truth is not None and len(texts) == 2:
        own = {} if score == COMPARE else {"score": to_vigneron(score)}
        return {**common, "flow": "verify", "truth": truth, **own}
    if truth is None and len(texts) == 2:
        own = {} if score == SCORE_DIRECTLY else {"score": to_vigneron(score)}
        return {**common, "flow": "judge", **own}
    if truth is None and len(texts) == 3 and texts[0][0] == "system" and texts[0][1].startswith(CRITIC):
        own = {} if score == SCORE else {"score": to_vigneron(score)}
        return {**common, "flow": "judge", "critique": to_vigneron(texts[0][1].removeprefix(CRITIC)), **own}
    return None


def _criterion(text: str) -> tuple[str, str | None] | None:
    """The description and the truth's column in the last message of `messages_of`; None for another message."""
    begin, end = "Criterion: ", f"\n\n{ASK}"
    if not text.startswith(begin) or not text.endswith(end):
        return None
    text, truth = text[len(begin) : -len(end)], None
    before, _, after = text.rpartition("\n\n<truth>\n{{ item.")
    if column := re.fullmatch(r"(\w+) \}\}\n</truth>", after):
        text, truth = before, column[1]
    sides = BODY.partition("{description}")[2].format(question=QUESTION, response=ANSWER)
    name, _, description = text.removesuffix(sides).partition("\n")
    return (description, truth) if text.endswith(sides) and name and description else None


def _prompt_item(name: str, texts: Sequence[tuple[str, str]], about: str) -> dict[str, Any]:
    prompt = to_vigneron("\n\n".join(text for _, text in texts if text.strip()))
    return {
        "name": name,
        "description": f"What the grader '{plain(name)}' asks for.",
        "flow": "judge",
        "critique": f"{CRITIC_OF_A_PROMPT}{prompt}",
        "score": f"{prompt}\n\n{about}" if about else prompt,
    }
