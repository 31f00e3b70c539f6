"""Prompts of an exact number of tokens, the same for every contestant, and rewards without a model."""

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.work import Work

VOCABULARY = """
river stone light garden winter morning bread paper window market silver people answer story forest road table house
water music letter summer night field horse bridge family village school friend island engine color number doctor
mountain simple early quiet green large small heavy bright warm cold clean strong young old and the with from under
over near after before because while into without along between each every some many walk turn carry hold bring keep
find leave watch build learn write speak sing open close follow begin remain
"""
WORDS = tuple(VOCABULARY.split())

DISTINCT_STEPS = 4
"""Steps with different prompts; after that many they repeat."""


def prompt_rows(work: Work, tokenizer: Any) -> list[dict[str, str]]:
    """The rows of a work's dataset: made of words, or the antonym task's with the parent's answers."""
    if work.prompt_tokens is None:
        from vigneron.data.tasks import load_task

        rows = load_task("antonyms").rows("train")
        return [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows]
    texts = exact_texts(tokenizer, work.prompt_tokens, work.prompts * DISTINCT_STEPS)
    return [{"prompt": text} for text in texts]


def prompt_token_ids(work: Work, tokenizer: Any) -> list[list[int]]:
    """The same prompts as ids, for contestants that only sample."""
    return [_ids(tokenizer, row["prompt"]) for row in prompt_rows(work, tokenizer)]


def exact_texts(tokenizer: Any, tokens: int, count: int, *, seed: int = 0) -> list[str]:
    """`count` different texts of exactly `tokens` ids each that decode to themselves."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    for _ in range(200 * count):
        text = _grow(tokenizer, tokens, draw)
        if text is not None:
            texts[text] = None
        if len(texts) == count:
            return list(texts)
    raise SystemExit(f"the tokenizer gives only {len(texts)} of {count} prompts of exactly {tokens} tokens")


def _grow(tokenizer: Any, tokens: int, draw: random.Random) -> str | None:
    """Add words until the length fits; None if the last word exceeds it or the text does not decode to itself."""
    words: list[str] = [draw.choice(WORDS) for _ in range(max(1, tokens // 2))]
    while (length := len(_ids(tokenizer, " ".join(words)))) < tokens:
        words.append(draw.choice(WORDS))
    text = " ".join(words)
    ids = _ids(tokenizer, text)
    stable = tokenizer.decode(ids) == text and _ids(tokenizer, tokenizer.decode(ids)) == ids
    return text if length == tokens and stable else None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def share_of_e(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float | None]:
    """The reward of every GRPO work, with TRL's signature: the share of the letter e in a completion."""
    return [text.count("e") / max(1, len(text)) for text in completions]
