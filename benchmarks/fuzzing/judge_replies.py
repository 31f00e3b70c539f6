"""Cases of replies: what a judge, a parent or their endpoint may send, parsed as a run parses it."""

import json
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzzing.kinds import Case
from benchmarks.fuzzing.mutations import NASTY_TEXTS, changed_text, changed_tree, garbage
from vigneron.errors import UserError
from vigneron.files import parse_json
from vigneron.rubric import atomize, infer
from vigneron.sources import reply_parsing
from vigneron.sources.client import parse_reply, parse_vectors

VERDICT = {"reasoning": "It is short, and it says why.", "score": 0.75, "confidence": 0.5}
LOGPROBS = [{"token": "7", "bytes": [55], "logprob": -0.1, "top_logprobs": [{"token": "8", "logprob": -2.0}]}]
REPLIES: tuple[Any, ...] = (
    VERDICT,
    {"OUTPUT": "cold"},
    {"principles": ["Be kind.", "Be short."]},
    {"items": [{"name": "a", "description": "d", "flow": "length", "at_most": 3}]},
    [0.1, 0, 0, 0.2, 0, 0, 0.3, 0, 0.4, 0],
    "yes",
)
ENVELOPE: dict[str, Any] = {
    "choices": [{"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": LOGPROBS}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 4},
}
VECTORS = {"data": [{"index": 0, "embedding": [0.5, 1]}, {"index": 1, "embedding": [0.25, -1]}]}
FILLERS = (
    " ",
    "\n",
    "\t",
    "`",
    "```",
    "```json\n",
    "```\n",
    '"',
    "\\",
    '"score": ',
    "0",
    "9",
    "-",
    "{",
    "}",
    "[",
    '{"a":',
    "“",
)
LENGTHS = (1, 3, 50, 3_000, 100_000)
LONGEST_MESSAGE = 1_000
REFUSED = (AttributeError, LookupError, TypeError, ValueError)
"""What the client treats as a malformed reply."""


def reply_text(random: Random) -> str:
    """A valid reply with changed values or text, in a fence or after prose, and with long runs of something."""
    tree = random.choice(REPLIES)
    try:
        text = json.dumps(changed_tree(tree, random) if random.random() < 0.5 else tree)
    except (RecursionError, TypeError, ValueError):
        text = garbage(random).decode("latin-1")
    if random.random() < 0.4:
        text = f"```{random.choice(('json', '', 'JSON '))}\n{text}\n{random.choice(('```', '``', ''))}"
    if random.random() < 0.4:
        text = changed_text(text, random)
    for _ in range(random.choice((0, 0, 1, 2))):
        filler = random.choice(FILLERS)
        at = random.choice((0, len(text), random.randrange(len(text) + 1)))
        text = text[:at] + filler * (random.choice(LENGTHS) // len(filler)) + text[at:]
    return text + random.choice(NASTY_TEXTS) if random.random() < 0.1 else text


def judge_reply_case(random: Random, folder: Path) -> Case:
    """The text of a reply in every format, or the JSON of an endpoint around it."""
    text = reply_text(random)
    envelope: Any = {**ENVELOPE, "choices": [{**ENVELOPE["choices"][0], "message": {"content": text}}]}
    try:
        body = json.dumps(changed_tree(random.choice((ENVELOPE, envelope, VECTORS)), random))
    except (RecursionError, TypeError, ValueError):
        body = garbage(random).decode("latin-1")
    if random.random() < 0.2:
        body = changed_text(body, random)

    def case() -> None:
        worked = [_parsed(text), _received(body)]
        if not any(worked):
            raise UserError("no parser accepts it")

    return case


def _parsed(text: str) -> bool:
    """Whether a parser accepts the reply. A score is within 0 and 1, and every message is short."""
    accepted = False
    for parse in (
        lambda: reply_parsing.parse_score(text),
        lambda: reply_parsing.parse_score(text, verbal=False),
        lambda: reply_parsing.parse_digits(text),
        lambda: reply_parsing.parse_answer(text, "json"),
        lambda: reply_parsing.parse_answer(text, "text"),
        lambda: reply_parsing.parse_text(text),
        lambda: atomize.parse_proposals(text),
        lambda: infer.parse_proposals(text),
    ):
        try:
            result: Any = parse()
        except reply_parsing.UnparsableReply as error:
            if len(str(error)) > LONGEST_MESSAGE:
                raise ValueError("a long message, which is sent back to the model") from error
            continue
        accepted = accepted or result is not None
        if isinstance(result, reply_parsing.Score):
            assert 0 <= result.score <= 1
            assert 0 <= result.confidence <= 1
            result.reasoning.encode()
    return accepted


def _received(body: str) -> bool:
    try:
        data = parse_json(body)
    except ValueError:
        return False
    try:
        reply = parse_reply(data)
        reply_parsing.digit_probabilities(reply.top_logprobs, [token for token, _ in reply.token_logprobs])
        return True
    except REFUSED:
        pass
    try:
        parse_vectors(data, 2)
        return True
    except REFUSED:
        return False
