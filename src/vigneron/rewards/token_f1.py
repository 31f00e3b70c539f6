"""Token F1 of the completion and the parent's answer: a dense reward without an embedder."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.prompts import completion_text
from vigneron.rewards.graders.checks import similarity


def token_f1_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """R = 2 |c ∩ p| / (|c| + |p|) of the words of the completion c and the parent's answer p, each as often as it
    occurs; 1 for equal texts without a word. A missing answer gives a missing reward."""
    return [
        None if wanted is None else similarity("token_f1", completion_text(completion), completion_text(wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]
