"""What is going wrong in a run, in plain words and with what to do: from its figures alone.

Thresholds were tried on the kept logs of `docs/results/logs`: what went well there is silent, or is
said in words that allow for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Record = Mapping[str, Any]

FIRST = 3
"""Steps whose mean is what a run started from: one alone is noise."""
LAST = 5
"""Steps in a row that a warning is about: a spike is none."""
LONGEST_LOOK = FIRST + LAST

FLAT_SHARE = 0.75
"""Of the groups: above it three quarters of what is sampled teach nothing, and a step costs as much."""
ENTROPY_SHARE, ENTROPY_FLOOR = 0.1, 0.05
"""Collapsed: a tenth of what it was, or 0.05 nats (one token of 99 % and little else) where that is more, as in
`report.stability`."""
KL_FAR = 3.0
"""Nats a token: each token is 20 times likelier than the start would have it. Word tasks that were learned well ended
at 1 to 2.5, children that had fallen to random words at 6 to 12."""
CUT_SHARE = 0.5
SHORT = 8
"""Tokens. Who allows no more than about so many means to cut: a word is all that is wanted."""
FAILED_STEPS = 3
"""A judge that fails once is retried and forgotten; one that fails in so many steps in a row is not well."""


def warnings_of(history: Sequence[Record]) -> dict[str, str]:
    """By what they are about. `history`: the figures of a run's first steps and of its last, in order."""
    steps = [record for record in history if record.get("step", 1) > 0]
    found = {about: check(steps) for about, check in CHECKS.items()}
    return {about: text for about, text in found.items() if text is not None}


def _flat_groups(steps: Sequence[Record]) -> str | None:
    shares = _last(steps, "frac_reward_zero_std")
    if len(shares) < LAST or min(shares) < FLAT_SHARE:
        return None
    return (
        f"in {fmean(shares):.0%} of the groups of the last {LAST} steps all rewards are equal, so those samples teach "
        "nothing: where the reward is high the prompts are learned, and others are wanted; where it is low they are "
        "too hard: easier prompts, a larger group_size, a higher sampling.temperature or a reward with more steps help"
    )


def _collapsed_entropy(steps: Sequence[Record]) -> str | None:
    values = _values(steps, "entropy")
    if len(values) < FIRST + LAST:
        return None
    start, now = fmean(values[:FIRST]), fmean(values[-LAST:])
    floor = max(ENTROPY_SHARE * start, ENTROPY_FLOOR)
    if start < floor or max(values[-LAST:]) >= floor:
        return None
    return (
        f"entropy fell from {start:.2f} to {now:.3f} nats a token: the child says nearly the same every time, and "
        "explores no more. Where the reward is not what it should be by now: a lower optimizer.actor_lr, a larger "
        "KL or entropy coefficient, or a higher sampling.temperature from the start"
    )


def _kl_runs_away(steps: Sequence[Record]) -> str | None:
    values = _last(steps, "kl")
    if len(values) < LAST or fmean(values) < KL_FAR:
        return None
    return (
        f"the KL to the start is {fmean(values):.1f} nats a token: the child is so far from what it was that its text "
        "may be broken, whatever the reward says. Look at the samples; a lower optimizer.actor_lr, or a larger "
        "method.kl.coefficient (with `adaptive`, a lower target), keeps it nearer"
    )


def _cut_completions(steps: Sequence[Record]) -> str | None:
    shares, lengths = _last(steps, "completions/clipped_ratio"), _last(steps, "completions/mean_length")
    sampled = _last(steps, "reward")
    if len(shares) < LAST or len(sampled) < LAST or min(shares) < CUT_SHARE or fmean(lengths) <= SHORT:
        return None
    return (
        f"{fmean(shares):.0%} of the completions of the last {LAST} steps are cut by max_new_tokens: the child does "
        "not get to the end of what it says, and is rewarded for the part. A larger max_new_tokens, or "
        "`sampling.mask_truncated: true`, which does not train on them"
    )


def _missing_rewards(steps: Sequence[Record]) -> str | None:
    missing = steps[-1].get("reward_missing", 0) if steps else 0
    if not missing:
        return None
    return (
        f"{missing} {'sample' if missing == 1 else 'samples'} of a step without a reward (judge, parent or function "
        "gave none): left out of the group, they teach nothing. The run stops when reward.missing_limit is passed"
    )


def _failing_judge(steps: Sequence[Record]) -> str | None:
    failed = [_failures(record) for record in steps[-FAILED_STEPS:]]
    if len(failed) < FAILED_STEPS or not all(failed):
        return None
    items = sorted({item for of_step in failed for item in of_step})
    named = ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
    return (
        f"items of the rubric got no score in each of the last {FAILED_STEPS} steps ({named}): an item that fails for "
        "one sample is left out for its whole group. Whether the judge is reached, and what it answers, is said in "
        "`vigneron rubric try`"
    )


def _failures(record: Record) -> list[str]:
    """`reward/CATEGORY/ITEM/failed` counts samples."""
    keys = [key.split("/") for key, value in record.items() if key.endswith("/failed") and value]
    return ["/".join(key[1:-1]) for key in keys if key[0] == "reward" and len(key) == 4]


CHECKS: dict[str, Callable[[Sequence[Record]], str | None]] = {
    "flat groups": _flat_groups,
    "entropy": _collapsed_entropy,
    "KL": _kl_runs_away,
    "truncation": _cut_completions,
    "missing rewards": _missing_rewards,
    "judge": _failing_judge,
}


class History:
    """What `warnings_of` needs of a run, however long it gets."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._kept: list[Record] = []
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        if record.get("step", 1) > 0:
            self._kept.append(record)
            if len(self._kept) > LONGEST_LOOK:
                del self._kept[FIRST]

    def warnings(self) -> dict[str, str]:
        return warnings_of(self._kept)


def _values(steps: Sequence[Record], key: str) -> list[float]:
    return [value for record in steps if isinstance(value := record.get(key), int | float) and value == value]


def _last(steps: Sequence[Record], key: str) -> list[float]:
    """Of the last steps, where each of them has it."""
    values = _values(steps[-LAST:], key)
    return values if len(values) == len(steps[-LAST:]) else []
