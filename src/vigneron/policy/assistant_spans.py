"""What a chat template writes for a conversation, and which parts of it the model would have written.

An answer begins where the generation prompt ends, so that whatever the template writes between (an empty think block, a
channel) is trained too, and ends with the special tokens that the template writes after it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vigneron.policy.chat_template import Render, TemplateError, render
from vigneron.policy.message_forms import as_parts, with_content, with_last_arguments

SENTINELS = tuple(map(chr, range(0x100000, 0x100004)))
"""Characters of a private plane in place of contents, to find out where a template writes them."""


class HistoryDiffers(Exception):
    """The template writes an answer in history differently from what follows its generation prompt."""


@dataclass(frozen=True)
class AssistantSpans:
    """A template's text up to the end of the last answer. `ended`: it ends with a special token."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """The characters of each answer."""
    ended: bool


@dataclass(frozen=True)
class TurnFormat:
    """How a template surrounds answers."""

    header: str | None
    """What stands between a conversation and its answer in the generation prompt and in history alike; None: the
    template writes answers in history otherwise."""
    ending: str
    """The special tokens after the last answer, or else the one after an earlier answer; empty: there are none."""
    delimiters: tuple[str, ...] = ()
    """All tokens of the template that are no ordinary text."""


def assistant_spans(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    turns: Sequence[int],
    special: Sequence[str],
    named: Sequence[str] = (),
    tools: Any = None,
) -> AssistantSpans:
    """The text for `messages`, which end with an answer. `turns` are the answers that are trained.

    `special` tokens can end an answer; `named` are other added tokens, such as `<think>`.
    """
    texts = json.dumps(list(messages), ensure_ascii=False, default=str)
    mark = next(character for character in SENTINELS if character not in texts)
    renders: list[Render] = [(messages, False)]
    for turn in turns:
        renders += [(messages[:turn], True), (_marked(messages, turn, mark), False)]
    whole, *others = render(tokenizer, renders, tools)
    around = turn_format(tokenizer, special, named)
    spans: list[tuple[int, int]] = []
    ended = False
    for turn, before, marked in zip(turns, others[0::2], others[1::2], strict=True):
        head, _, _ = marked.partition(mark)
        tail = marked.rpartition(mark)[2]
        if messages[turn].get("tool_calls"):  # the mark is a text in an object; the arguments may end otherwise
            tail = _common(tail[::-1], whole[::-1])[::-1]
        if mark not in marked or not whole.endswith(tail):
            raise HistoryDiffers(turn)
        floor = spans[-1][1] if spans else 0
        start = _start(tokenizer, messages, turn, tools, whole, head, before, around, floor)
        stop = len(whole) - len(tail)
        ending = _ending(tail, special, around.ending, calls=bool(messages[turn].get("tool_calls")))
        spans.append((start, stop + len(ending)))
        ended = bool(ending)
    text = whole[: spans[-1][1]]
    if not ended and around.ending:
        text, ended = text + around.ending, True
        spans[-1] = (spans[-1][0], len(text))
    return AssistantSpans(text, tuple(spans), ended)


def after_answer(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    turn: int,
    special: Sequence[str],
    named: Sequence[str] = (),
    tools: Any = None,
    closing: str = "",
) -> tuple[str, bool]:
    """What the template writes between the end of the answer at `turn` and the next answer; and whether the answer
    ends with calls that the special token `closing` closes: some templates close them by another than an answer."""
    texts = json.dumps(list(messages), ensure_ascii=False, default=str)
    mark = next(character for character in SENTINELS if character not in texts)
    (marked,) = render(tokenizer, [(_marked(messages, turn, mark), True)], tools)
    if mark not in marked:
        raise HistoryDiffers(turn)
    tail = marked.rpartition(mark)[2]
    calls = bool(messages[turn].get("tool_calls"))
    if calls and closing and closing in _first_run(tail, special):
        return tail.partition(closing)[2], True
    around = turn_format(tokenizer, special, named)
    return tail[len(_ending(tail, special, around.ending, calls=calls)) :], False


def _first_run(tail: str, special: Sequence[str]) -> str:
    """The first special tokens of a text, side by side."""
    tokens = any_of(special)
    token = tokens.search(tail)
    run = re.compile(f"(?:{tokens.pattern})+").match(tail, token.start()) if token is not None else None
    return "" if run is None else run[0]


def _start(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    turn: int,
    tools: Any,
    whole: str,
    head: str,
    before: str,
    around: TurnFormat,
    floor: int,
) -> int:
    """Where the answer begins: after the generation prompt, or after as much of it as the template repeats."""
    if whole.startswith(before):
        return len(before)
    (history,) = render(tokenizer, [(messages[:turn], False)], tools)
    shared = _whole_tokens(before, len(_common(before, head)), around.delimiters)
    if shared > len(history) and before.startswith(history) and whole.startswith(head[:shared]):
        return shared
    # The template changes earlier turns (a system message in the last user turn, reasoning that is left out).
    if around.header is None:
        raise HistoryDiffers(turn)
    at = head.rfind(around.header) if around.header else len(head.rstrip())
    start = at + len(around.header)
    if at < floor or not whole.startswith(head[:start]):
        raise HistoryDiffers(turn)
    return start


def _ending(tail: str, special: Sequence[str], ending: str, *, calls: bool) -> str:
    """The beginning of what follows an answer, up to the end of its turn: the last answer's ending, or one special
    token, after white space. After tool calls it may be after anything."""
    tokens = any_of(special)
    space = re.match(r"\s*", tail)
    assert space is not None
    if ending and tail.startswith(ending, space.end()):
        return space[0] + ending
    token = tokens.search(tail) if calls else tokens.match(tail, space.end())
    if token is None:
        return ""
    run = re.compile(f"(?:{tokens.pattern})+").match(tail, token.start())
    assert run is not None
    ends = run[0].find(ending) if ending else -1
    return tail[: token.end()] if ends < 0 else tail[: token.start() + ends + len(ending)]


def _marked(messages: Sequence[Mapping[str, Any]], turn: int, mark: str) -> list[Mapping[str, Any]]:
    message = messages[turn]
    changed = with_last_arguments(message, mark) if message.get("tool_calls") else with_content(message, mark)
    return [*messages[:turn], changed, *messages[turn + 1 :]]


def turn_format(tokenizer: Any, special: Sequence[str], named: Sequence[str] = ()) -> TurnFormat:
    return _turn_format(tokenizer, str(tokenizer.chat_template), tuple(special), tuple(named))


@lru_cache(maxsize=16)
def _turn_format(tokenizer: Any, template: str, special: tuple[str, ...], named: tuple[str, ...]) -> TurnFormat:
    """Found by rendering two turns. Nothing is known of a template that refuses them."""
    question, answer, second, last = SENTINELS
    delimiters = (*special, *named)
    contents = {"user": (question, second), "assistant": (answer, last)}
    messages = [{"role": role, "content": contents[role][n]} for n in (0, 1) for role in ("user", "assistant")]
    for probe in (messages, as_parts(messages)):
        try:
            history, before, whole = render(tokenizer, [(probe[:1], False), (probe[:1], True), (probe, False)])
        except TemplateError:
            continue
        if answer not in whole or last not in whole:
            continue
        head, tail = whole.partition(answer)[0], whole.rpartition(last)[2]
        between = whole.rpartition(answer)[2].partition(second)[0]
        common = len(_common(before, head))
        shared = before[: _whole_tokens(before, common, delimiters)]
        repeats = before.startswith(history) and (len(shared) > len(history) or whole.startswith(before))
        header = shared[len(history) :] if repeats else None
        run = _run(tail, special, str(getattr(tokenizer, "eos_token", None) or ""))
        beginning = str(getattr(tokenizer, "bos_token", None) or "")
        follows = any_of([token for token in special if token != beginning]).match(between.lstrip())
        return TurnFormat(header, run or (follows[0] if follows else ""), delimiters)
    return TurnFormat(None, "", delimiters)


def _run(tail: str, special: Sequence[str], end: str) -> str:
    """The first special tokens of a text that stand side by side, up to the tokenizer's end token."""
    tokens, run = any_of(special), ""
    at = len(tail) - len(tail.lstrip())
    while match := tokens.match(tail, at):
        run, at = run + match[0], match.end()
        if match[0] == end:
            break
    return run


def _whole_tokens(text: str, at: int, delimiters: Sequence[str]) -> int:
    """The position, or the beginning of a delimiter that it would cut."""
    spans = (match.span() for match in any_of(delimiters).finditer(text))
    return next((start for start, stop in spans if start < at < stop), at)


def _common(one: str, other: str) -> str:
    """The longest common beginning."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:at]


def any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return _any_of(tuple(texts))


@lru_cache(maxsize=64)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that matches any of the texts, the longest first, as tokenizers do. Without texts it never matches."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")
