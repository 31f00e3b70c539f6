"""The messages of a model grader. What a judge of ours is told in two calls stands there in one conversation: the
critique as instructions to think first, then the scorer's prompt, then the criterion with question and response.

Messages of this shape are read back as the item they were. Any others become the scorer's prompt as they are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vigneron.rubric.formats.parts import NoCounterpart
from vigneron.rubric.model import AnyItem, JudgeItem, VerifyItem
from vigneron.rubric.prompts import COMPARE, SCORE

OUTPUT = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
PATH = r"[A-Za-z]\w*(?:\.[A-Za-z]\w*|\[\d+\])*"
ANSWER = "{{ sample.output_text }}"
QUESTION = "{{ item.prompt }}"


def to_ours(text: str) -> str:
    def ours(found: re.Match[str]) -> str:
        variable = found[1].strip()
        if variable == "sample.output_text":
            return "{{ response }}"
        if variable == "item.prompt":
            return "{{ question }}"
        column = re.fullmatch(rf"item\.({PATH})", variable, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{found[0]}` has no counterpart in a rubric")
        return f"{{{{ row.{column[1]} }}}}"

    plain(OUTPUT.sub("", text), ("{{", "{%", "{#"))
    return OUTPUT.sub(ours, text)


def to_theirs(text: str, item: AnyItem) -> str:
    own = {"item.name": item.name, "item.description": item.description}

    def theirs(found: re.Match[str]) -> str:
        variable = found[1].strip()
        if variable == "response":
            return ANSWER
        if variable == "question":
            return QUESTION
        if variable in own:
            return plain(own[variable])
        bracketed = re.sub(r"""\[(["'])([A-Za-z]\w*)\1\]""", r".\2", variable)
        column = re.fullmatch(rf"row\.({PATH})", bracketed, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{found[0]}` has no counterpart there")
        return f"{{{{ item.{column[1]} }}}}"

    plain(OUTPUT.sub("", text), ("{{", "{%", "{#"))
    return OUTPUT.sub(theirs, text)


def plain(text: str, marks: tuple[str, ...] = ("{{",)) -> str:
    """A text that is no template, on the other side either."""
    for mark in marks:
        if mark in text:
            raise NoCounterpart(f"it holds `{mark}`, which is read as the beginning of a template")
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
        column = to_theirs(f"{{{{ row.{item.truth} }}}}", item)
        systems, body = [to_theirs(item.score or COMPARE, item)], body + TRUTH.format(truth=column)
    else:
        systems = [CRITIC + to_theirs(item.critique, item), to_theirs(item.score or SCORE, item)]
    messages = [{"role": "system", "content": text} for text in systems]
    return [*messages, {"role": "user", "content": f"{body}\n\n{ASK}"}]


def item_of(name: str, messages: Any, *, about: str = "") -> dict[str, Any]:
    """`about` is said to the scorer after the messages, where it is not empty."""
    texts = texts_of(messages)
    return (not about and _ours(name, texts)) or _theirs(name, texts, about)


def texts_of(messages: Any) -> list[tuple[str, str]]:
    """Role and text. Pictures and sound have no counterpart."""
    if not isinstance(messages, list) or not messages:
        raise NoCounterpart("its `input` is no list of messages")
    return [_text_of(message) for message in messages]


def _text_of(message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise NoCounterpart("its `input` is no list of messages")
    content = message.get("content")
    found = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in PARTS else part
        if not isinstance(text, str):
            raise NoCounterpart("it has a message that is no text")
        found.append(text)
    return str(message.get("role")), "\n".join(found)


def _ours(name: str, texts: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    if [role for role, _ in texts[-2:]] != ["system", "user"] or len(texts) > 3:
        return None
    pattern = re.escape(BODY.format(name="@1", description="@2", question=QUESTION, response=ANSWER))
    pattern = pattern.replace("@1", ".+?", 1).replace("@2", "(?P<description>.+?)", 1)
    truth = r"(?:\n\n<truth>\n\{\{ item\.(?P<truth>\w+) \}\}\n</truth>)?"
    found = re.fullmatch(rf"{pattern}{truth}\n\n{re.escape(ASK)}", texts[-1][1], re.DOTALL)
    if found is None:
        return None
    common = {"name": name, "description": found["description"]}
    score = texts[-2][1]
    if found["truth"] is not None and len(texts) == 2:
        own = {} if score == COMPARE else {"score": to_ours(score)}
        return {**common, "flow": "verify", "truth": found["truth"], **own}
    if found["truth"] is None and len(texts) == 3 and texts[0][0] == "system" and texts[0][1].startswith(CRITIC):
        own = {} if score == SCORE else {"score": to_ours(score)}
        return {**common, "flow": "judge", "critique": to_ours(texts[0][1].removeprefix(CRITIC)), **own}
    return None


def _theirs(name: str, texts: Sequence[tuple[str, str]], about: str) -> dict[str, Any]:
    prompt = to_ours("\n\n".join(text for _, text in texts if text.strip()))
    return {
        "name": name,
        "description": f"What the grader '{plain(name)}' asks for.",
        "flow": "judge",
        "critique": f"{CRITIC_OF_A_PROMPT}{prompt}",
        "score": f"{prompt}\n\n{about}" if about else prompt,
    }
