"""Whether the judge of a debate decided right, worked out from what a role earned."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.prompts import completion_text
from vigneron.data.sum_lists import OTHER
from vigneron.text import normalise


def judge_right_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    higher: Sequence[str | None],
    side: Sequence[str | None] | None = None,
    environment_reward: Sequence[float | None] | None = None,
    role: Sequence[str] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1 if the judge's decision is `higher`. Role `b` argues against `side`, every other role for it. A reward of 0 is
    a judge that cannot tell: it decides for X. None where the episode failed or the row has no side.

    An answer without a debate is right if it is `higher`."""
    if environment_reward is None or role is None:
        texts = [normalise(completion_text(completion)) for completion in completions]
        return [None if h is None else float(text == normalise(h)) for text, h in zip(texts, higher, strict=True)]
    sides = side or [None] * len(completions)
    return [_verdict(*given) for given in zip(environment_reward, sides, higher, role, strict=True)]


def _verdict(earned: float | None, side: str | None, higher: str | None, role: str) -> float | None:
    if earned is None or side is None or higher is None:
        return None
    own = OTHER[side] if role == "b" else side
    decided = "X" if earned == 0 else own if earned > 0 else OTHER[own]
    return float(decided == higher)
