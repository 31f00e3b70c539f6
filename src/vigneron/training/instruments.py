"""Instruments against gamed rewards: what a completion looks like, beside what it earns."""

from vigneron.batch import Batch
from vigneron.rewards.text import length_ratio, repetition, share_in
from vigneron.rollout.prompts import completion_text, prompt_text


def instruments(batch: Batch) -> dict[str, float]:
    """Means over the batch. A child that echoes, babbles or says one thing to everything is seen here first.

    `distinct`: how many distinct completions there are for each distinct answer (or input): 1 for a perfect child.
    """
    texts = [completion_text(completion) for completion in batch.completions]
    inputs = batch.columns.get("input") or tuple(prompt_text(prompt) for prompt in batch.prompts)
    answers = batch.columns.get("answer", ())
    ratios = [
        length_ratio(text, completion_text(answer))
        for text, answer in zip(texts, answers, strict=False)
        if answer is not None
    ]
    return {
        "completions/echo": _mean([share_in(text, str(source)) for text, source in zip(texts, inputs, strict=True)]),
        "completions/repetition": _mean([repetition(text) for text in texts]),
        "completions/distinct": len(set(texts)) / len({str(wanted) for wanted in answers or inputs}),
        **({"completions/length_ratio": _mean(ratios)} if ratios else {}),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
