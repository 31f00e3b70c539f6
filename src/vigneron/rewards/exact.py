"""The binary baseline (pgsrm §4.3): 1 for the parent's answer, 0 for everything else."""

import re
from collections.abc import Sequence
from typing import Any

from vigneron.rewards.text import normalise
from vigneron.rollout.prompts import completion_text


def is_exact(completion: Any, answer: Any) -> bool:
    return normalise(completion_text(completion)) == normalise(completion_text(answer))


def includes(completion: Any, answer: Any) -> bool:
    """Whether the answer stands in the completion, as whole words, with anything around it."""
    wanted = re.escape(normalise(completion_text(answer)))
    return re.search(rf"(?<!\w){wanted}(?!\w)", completion_text(completion).casefold()) is not None


def exact_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """String equality after normalisation; a missing answer gives a missing reward."""
    return [
        None if wanted is None else float(is_exact(completion, wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]
