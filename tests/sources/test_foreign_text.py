"""Every parser of foreign text takes time in proportion to the text: a million characters, twice as many as before.

Each runs in a forked process under a limit on its CPU time: a pattern that backtracks over a million characters holds
the GIL for an hour.
"""

import gc
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from vigneron.data.guess import read_guess
from vigneron.data.maze import read_move
from vigneron.data.nim import Nim
from vigneron.data.sum_lists import read_quotes
from vigneron.data.tic_tac_toe import TicTacToe
from vigneron.environments.calculator import calculate, read_call
from vigneron.environments.tool_calls import FORMATS, BadCall
from vigneron.errors import UserError, visible
from vigneron.redaction import redacted
from vigneron.remote.vllm.completion import parsed_version
from vigneron.rewards.checkers import includes, is_exact
from vigneron.rewards.final_number import final_number
from vigneron.rewards.graders.checks import count_sentences, count_words
from vigneron.rewards.sentiment import is_inverted, is_one_sentence
from vigneron.rubric import atomize, infer, ladder_rule
from vigneron.rubric.fences import fenced
from vigneron.rubric.formats.openai_messages import item_of, to_vigneron
from vigneron.rubric.formats.parts import NoCounterpart
from vigneron.rubric.formats.verifiers import _choices
from vigneron.sources.client import error_message, parse_reply, parse_response, retry_after
from vigneron.sources.reply_parsing import (
    UnparsableReply,
    parse_answer,
    parse_digits,
    parse_score,
    parse_text,
    unfenced,
)
from vigneron.text import letters_only, normalise, repetition, words_and_numbers, words_only

KEY = "sk-can/ary-7d1f0c94aa"
LIMIT_S = 60
INPUTS: Mapping[str, Callable[[int], str]] = {
    "an open fence of spaces": lambda n: "```\n" + " " * n,
    "an open fence of lines": lambda n: "```json\n" + "\n \t" * (n // 3),
    "backticks": lambda n: "`" * n,
    "a score that never comes": lambda n: '"score"' + " " * n,
    "many scores": lambda n: '"score": ' * (n // 9),
    "brackets": lambda n: "[" * n,
    "objects": lambda n: '{"a":' * (n // 5),
    "braces": lambda n: "{{" * (n // 2),
    "fences without an end": lambda n: "<response-00000000>\n" * (n // 20),
    "a criterion of lines": lambda n: "Criterion: " + "\n" * n,
    "backslashes": lambda n: "\\" * n,
    "the key, almost, escaped": lambda n: (KEY[:-1] + "\\") * (n // len(KEY)),
    "escaped backslashes": lambda n: "\\u005c" * (n // 6),
    "percent-encoded backslashes": lambda n: "%5c" * (n // 3),
    "percent signs, encoded again and again": lambda n: "%" + "25" * (n // 2),
    "escapes of one letter": lambda n: "\\u0073" * (n // 6),
    "digits": lambda n: "1" * n,
    "full stops": lambda n: "." * n,
    "full stops and quotes": lambda n: "." + '"' * n + " .",
    "addresses": lambda n: "://" + "a" * n,
    "combining marks": lambda n: "a" + "\u0315\u0300" * (n // 2),
    "subscripts": lambda n: "₁" * (n // 2) + "1₁" * (n // 4),
    "words": lambda n: "I hate rain " * (n // 12),
    "groups": lambda n: "1 " + "234 " * (n // 4) + "5",
    "groups and marks": lambda n: "1,234.5'6:7/" * (n // 12),
    "fractions": lambda n: "1 2/3 " * (n // 6),
    "letters without spaces": lambda n: "雨ฝ\u0e49" * (n // 3),
    "digits of other scripts": lambda n: "٤٢²" * (n // 3),
    "levels": lambda n: "- " + " = 1" * (n // 4),
    "lines": lambda n: "a\r\n" * (n // 3),
    "role tokens": lambda n: "<|a" * (n // 3),
}
OPENINGS = [
    *("", '<tool_call>{"name": "f", "arguments": {"x": "', "<tool_call>f<arg_key>x</arg_key><arg_value>"),
    *(
        "<tool_call><function=f><parameter=x>",
        "<|python_tag|>",
        "[f(x=",
        "[f(x='",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f[ARGS]",
    ),
    *("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "<|tool_call|>", "functools["),
    *("<|tool_call_start|>[f(x=", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    *("<|tool_call>call:f{x:", "<start_function_call>call:f{x:<escape>", "<|tool_calls_section_begin|>"),
]


def parse_calls(text: str) -> None:
    """Of all formats, where a call has begun."""
    for known, marks in FORMATS:
        for opening in OPENINGS:
            if not opening or any(mark in opening for mark in (*marks, "[f(", "<|python_tag|>")):
                with suppress(BadCall):
                    known.parse(opening + text)


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "unfenced": unfenced,
    "parse_score": parse_score,
    "parse_score, in JSON": lambda text: parse_score(
        json.dumps({"reasoning": text, "score": 1, "confidence": 1}) + text
    ),
    "parse_answer": lambda text: parse_answer(text, "json"),
    "parse_answer, text": lambda text: parse_answer(f'"{text}"', "text"),
    "parse_text": parse_text,
    "parse_digits": parse_digits,
    "parse_response": lambda text: parse_response(text.encode()),
    "parse_reply": lambda text: parse_reply({"choices": [{"message": {"content": text}, "logprobs": text}]}),
    "error_message": lambda text: error_message(json.dumps({"error": text}).encode()),
    "retry_after": lambda text: retry_after({"retry-after": text}),
    "redacted": lambda text: redacted(text, KEY),
    "redacted, a key with backslashes": lambda text: redacted(text, "\\sk\\can\\\\ary-7d1f0c94aa"),
    "visible": visible,
    "UserError": UserError,
    "fenced": lambda text: fenced("response", text),
    "ladder_rule": lambda text: ladder_rule.judge([{"role": "user", "content": text}]),
    "infer": infer.parse_proposals,
    "atomize": atomize.parse_proposals,
    "openai": to_vigneron,
    "openai messages": lambda text: item_of(
        "x", [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    ),
    "verifiers": _choices,
    "normalise": normalise,
    "letters_only": letters_only,
    "words_only": words_only,
    "words_and_numbers": words_and_numbers,
    "repetition": repetition,
    "includes": lambda text: includes(text, "rain or shine"),
    "includes, a number": lambda text: includes(text, "4"),
    "includes, a letter": lambda text: includes(text, "雪"),
    "final_number": final_number,
    "is_exact": lambda text: is_exact(text, "rain"),
    "is_inverted": lambda text: is_inverted("I love the rain.", text),
    "is_one_sentence": is_one_sentence,
    "count_sentences": count_sentences,
    "count_words": count_words,
    "vLLM's version": parsed_version,
    "guess": read_guess,
    "move": read_move,
    "calculation": calculate,
    "call of the calculator": read_call,
    "Nim": Nim().read_move,
    "quotes": lambda text: read_quotes(text, 4),
    "tic-tac-toe": TicTacToe().read_move,
    "tool calls": parse_calls,
}
# What was quadratic.
KNOWN = [
    ("unfenced", "an open fence of spaces"),
    ("parse_score", "an open fence of lines"),
    ("openai", "braces"),
    ("openai messages", "a criterion of lines"),
    ("ladder_rule", "fences without an end"),
    ("normalise", "combining marks"),
    ("normalise", "subscripts"),
    ("is_inverted", "words"),
    ("vLLM's version", "digits"),
    ("redacted", "backslashes"),
    ("redacted, a key with backslashes", "escaped backslashes"),
    ("redacted, a key with backslashes", "percent-encoded backslashes"),
    ("redacted", "percent signs, encoded again and again"),
]


def cpu_s(parser: str, text: str) -> float:
    began = time.process_time()
    with suppress(UnparsableReply, NoCounterpart, ValueError):
        PARSERS[parser](text)
    return time.process_time() - began


def check(pairs: list[tuple[str, str]], size: int) -> None:
    """In the forked process. Twice the text may take three times the time; in the square it takes four times."""
    gc.disable()  # a collection walks over all that the tests before have made
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    for parser, name in pairs:
        print(f"{parser} of {name}", flush=True)
        half, whole = (cpu_s(parser, INPUTS[name](n)) for n in (size // 2, size))
        assert whole <= 3 * half + 0.5, f"{parser} of {name}: {half:.2f} s, then {whole:.2f} s"


def checked(pairs: list[tuple[str, str]], size: int) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=check, args=(pairs, size))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_what_was_quadratic_is_linear() -> None:
    assert checked(KNOWN, 1_000_000) == 0


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
def test_every_parser_is_linear_in_every_text(parser: str) -> None:
    assert checked([(parser, name) for name in INPUTS], 200_000) == 0
