"""A rule in place of a judge, for the task `ladder-steps`: it criticises, revises, compares and answers.

    {kind: python, function: "vigneron.rubric.ladder_rule:judge"}

It knows the two principles of the bundled file `ladder`: every line is the running sum; one line for every term.
"""

import json
import re
from collections.abc import Sequence
from itertools import accumulate, zip_longest

from vigneron.rubric.principle_prompts import GUIDES
from vigneron.sources.client import Message

TAG = re.compile(r"<(/?)(\w+-[0-9a-f]{8,})>")
NUMBER = re.compile(r"\d{1,9}")


def judge(messages: Sequence[Message]) -> str:
    """The reply to a request of `rubric/principle_prompts.py`, or to a plain sum."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    request = messages[-1]["content"]
    texts = fenced_texts(request)
    sums = running_sums(texts.get("question", request))
    by_terms = "one line for every term" in request
    if "first" in texts and "second" in texts:
        faults = [_faults(texts[side], sums, by_terms) for side in ("first", "second")]
        score = 0.5 if faults[0] == faults[1] else float(faults[0] < faults[1])
        return _verdict(score, f"{faults[0]} faults against {faults[1]}")
    if "critique" in texts:
        return revised(texts["response"], sums, by_terms)
    if "response" in texts:
        return critique(texts["response"], sums, by_terms)
    if "preferred" in texts:
        return json.dumps({"principles": [_proposal(texts["preferred"], texts["other"], sums)]})
    if system.startswith(GUIDES["bad"]):
        sums[-1] += 1
    return "\n".join(map(str, sums))


def fenced_texts(request: str) -> dict[str, str]:
    """The texts between two tags (`fences.py`), by name. Tags inside of a fence are part of its text."""
    tags = list(TAG.finditer(request))
    last = {tag[2]: at for at, tag in enumerate(tags) if tag[1]}
    texts: dict[str, str] = {}
    open_tag: re.Match[str] | None = None
    for at, tag in enumerate(tags):
        if open_tag is None and not tag[1] and request.startswith("\n", tag.end()) and last.get(tag[2], -1) > at:
            open_tag = tag
        elif open_tag is not None and tag[1] and tag[2] == open_tag[2]:
            text = request[open_tag.end() + 1 : tag.start()]
            texts[open_tag[2].rpartition("-")[0]] = text.removesuffix("\n")
            open_tag = None
    return texts


def running_sums(question: str) -> list[int]:
    return list(accumulate(map(int, NUMBER.findall(question))))


def _lines(response: str) -> list[str]:
    return [line.strip() for line in response.splitlines() if line.strip()]


def _wrong(lines: Sequence[str], sums: Sequence[int]) -> list[int]:
    """The places of the lines that are not the running sum."""
    return [at for at, (line, total) in enumerate(zip(lines, sums, strict=False)) if line != str(total)]


def _faults(response: str, sums: Sequence[int], by_terms: bool) -> int:
    lines = _lines(response)
    if by_terms:
        return abs(len(lines) - len(sums))
    return sum(line != str(total) for line, total in zip_longest(lines, sums))


def critique(response: str, sums: Sequence[int], by_terms: bool) -> str:
    lines = _lines(response)
    if by_terms:
        right = len(lines) == len(sums)
        return "Every term has its line." if right else f"There are {len(lines)} lines for {len(sums)} terms."
    wrong = _wrong(lines, sums)
    return f"Line {wrong[0] + 1} should be {sums[wrong[0]]}." if wrong else "Every line that is there is right."


def revised(response: str, sums: Sequence[int], by_terms: bool) -> str:
    """One fault is mended: the first wrong line, or the number of lines."""
    lines = _lines(response)
    if by_terms:
        lines = [*lines[: len(sums)], *(str(total) for total in sums[len(lines) :])]
    elif wrong := _wrong(lines, sums):
        lines[wrong[0]] = str(sums[wrong[0]])
    return "\n".join(lines)


def _proposal(preferred: str, other: str, sums: Sequence[int]) -> str:
    """What may have decided: the number of lines where it differs, else the sums."""
    if _faults(preferred, sums, True) < _faults(other, sums, True):
        return "There is one line for every term of the sum, and no other line."
    return "Every line is the sum of the terms up to that place."


def _verdict(score: float, reasoning: str) -> str:
    return json.dumps({"reasoning": reasoning, "score": score, "confidence": 1.0})
