"""The binary baseline (pgsrm §4.3): 1 for the parent's answer, 0 for everything else."""

from collections.abc import Sequence
from typing import Any

from vigneron.rewards.text import normalise
from vigneron.rollout.prompts import completion_text


def is_exact(completion: Any, answer: Any) -> bool:
    return normalise(completion_text(completion)) == normalise(completion_text(answer))


def exact_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """String equality after normalisation; a missing answer gives a missing reward."""
    return [
        None if wanted is None else float(is_exact(completion, wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]
