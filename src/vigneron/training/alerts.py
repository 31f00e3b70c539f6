"""Warnings about a run, from its metrics: what goes wrong and what to do.

The thresholds were checked on the logs of `docs/results/logs`: runs that went well there give no
warning, or one whose text allows for that case.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vigneron.config.rewards import RewardOptions
from vigneron.run_store.metric_table import Metric, lower_is_better
from vigneron.run_store.outcome import (
    Evaluation,
    best_evaluation,
    change_between,
    outcome_metric,
    verdict_of,
)
from vigneron.values import is_number, short

Record = Mapping[str, Any]

FIRST = 3
"""Steps whose mean is the start value: a single step is noise."""
LAST = 5
"""Consecutive steps that a warning needs: a spike gives none."""
HISTORY_LENGTH = FIRST + LAST

FLAT_SHARE = 0.75
"""Share of groups without a learning signal, at the same cost per step."""
ENTROPY_SHARE, ENTROPY_FLOOR = 0.1, 0.05
"""Collapsed: below a tenth of the start value, or below 0.05 nats (one token has 99 %) where that is more, as in
`run_store.stability`."""
KL_FAR = 3.0
"""Nats per token: each token is 20 times as likely as under the reference. Word tasks that were learned well ended at 1
to 2.5, policies that had collapsed to random words at 6 to 12."""
CUT_SHARE = 0.5
SHORT = 8
"""Tokens: with a limit this low, truncation is intended (one-word answers)."""
FAILED_STEPS = 3
"""Consecutive steps with failures: a single failure of a judge is retried and needs no warning."""


def warnings_of(history: Sequence[Record]) -> dict[str, str]:
    """Texts by subject. `history`: the metrics of a run's first and last steps, in order."""
    steps = [record for record in history if record.get("step", 1) > 0]
    texts = {about: check(steps) for about, check in CHECKS.items()}
    return {about: text for about, text in texts.items() if text is not None}


def _zero_std_groups(steps: Sequence[Record]) -> str | None:
    shares = _last(steps, "frac_reward_zero_std")
    if len(shares) < LAST or min(shares) < FLAT_SHARE or not any(_last(steps, "completions/answered") or [1.0]):
        return None  # where no completion has an answer, that is the reason (`explain_reward_reads`)
    return (
        f"in {fmean(shares):.0%} of the groups of the last {LAST} steps all rewards are equal: they give no gradient. "
        "If the reward is high, the prompts are learned: use other ones. If it is low, they are too hard: try easier "
        "prompts, a larger group_size, a higher sampling.temperature or a finer-grained reward"
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
        f"entropy fell from {start:.2f} to {now:.3f} nats per token: the samples of a prompt are nearly identical, and "
        "exploration has stopped. If the reward is not good enough yet: try a lower optimizer.actor_lr, a larger KL or "
        "entropy coefficient, or a higher sampling.temperature from the start"
    )


def _kl_runs_away(steps: Sequence[Record]) -> str | None:
    values = _last(steps, "kl")
    if len(values) < LAST or fmean(values) < KL_FAR:
        return None
    return (
        f"the KL to the reference is {fmean(values):.1f} nats per token: the policy is so far from the base model that "
        "its text may be broken, even if the reward is high. Check the samples; a lower optimizer.actor_lr or a larger "
        "method.kl.coefficient (with `adaptive`, a lower target) keeps it closer"
    )


def _cut_completions(steps: Sequence[Record]) -> str | None:
    shares, lengths = _last(steps, "completions/clipped_ratio"), _last(steps, "completions/mean_length")
    sampled = _last(steps, "reward")
    if len(shares) < LAST or len(sampled) < LAST or min(shares) < CUT_SHARE or fmean(lengths) <= SHORT:
        return None
    return (
        f"{fmean(shares):.0%} of the completions of the last {LAST} steps are truncated at max_new_tokens, and are "
        "rewarded all the same: increase max_new_tokens; if the answers are complete before it, set `sampling.stop` to "
        'a string that ends them, such as ["\\n"]; or set `sampling.mask_truncated: true` to not train on them'
    )


def _missing_rewards(steps: Sequence[Record]) -> str | None:
    missing = steps[-1].get("reward_missing", 0) if steps else 0
    if not missing or steps[-1].get("turns/failed"):
        return None  # `conversation_warnings` says why
    return (
        f"{missing} {'sample' if missing == 1 else 'samples'} of a step without a reward (the judge, the parent or the "
        "function returned none): ignored in the group and in the loss. Above reward.missing_limit the run stops"
    )


def _failing_judge(steps: Sequence[Record]) -> str | None:
    failed = [_failures(record) for record in steps[-FAILED_STEPS:]]
    if len(failed) < FAILED_STEPS or not all(failed):
        return None
    items = sorted({item for of_step in failed for item in of_step})
    named = ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
    return (
        f"rubric items failed in each of the last {FAILED_STEPS} steps ({named}): an item that fails for one sample is "
        "left out for its whole group. Test the judge with `vigneron rubric try`"
    )


def _failures(record: Record) -> list[str]:
    """`reward/CATEGORY/ITEM/failed` counts samples."""
    keys = [key.split("/") for key, value in record.items() if key.endswith("/failed") and value]
    return ["/".join(key[1:-1]) for key in keys if key[0] == "reward" and len(key) == 4]


def explain_reward_reads(reward: RewardOptions, metrics: Record, samples: int) -> list[str]:
    """Where the reward finds nothing to read: a delimiter or separator that no completion of the step contains."""
    lines = []
    if reward.sees == "answer" and metrics.get("completions/answered") == 0.0:
        lines.append(
            f"`{reward.delimiter}` occurs in 0 of {samples} completions of this step, so reward and checker read an "
            "empty answer: check `reward.delimiter`; if completions are cut before it, increase max_new_tokens"
        )
    separator = getattr(reward, "separator", None)
    if separator is not None and metrics.get("reward/steps") == 1.0:
        lines.append(
            f"the separator {separator!r} divides 0 of {samples} completions of this step, so each is one step: check "
            "`reward.separator` (null: what the process model was trained with)"
        )
    return lines


def falling_held_out(
    path: Path, config: Record, evaluations: Sequence[Record], rewards: tuple[float, float] | None
) -> str | None:
    """Of a run whose last evaluation is worse than its best one, beyond what its rows leave open, while the reward of
    training rose. `rewards`: at the start and now, where it did.

    The best of many evaluations is partly luck, and each evaluation asks again: of 50 evaluations of a model that does
    not change, a 95 % interval calls one a fall in most runs. So the level is that of all pairs together (Bonferroni).
    """
    if rewards is None or len(evaluations) < 2 or (judged_by := outcome_metric(config, evaluations)) is None:
        return None
    key = judged_by.key
    measured = [Evaluation(r["step"], float(r[key])) for r in evaluations if is_number(r.get(key))]
    best = best_evaluation(key, measured[:-1])
    if best is None or measured[-1].step != evaluations[-1]["step"]:
        return None
    pairs = len(measured) * (len(measured) - 1) / 2
    change, rows = change_between(path, key, best, measured[-1], level=1 - 0.05 / pairs)
    if change is None or verdict_of(change, lower_is_better=lower_is_better(key)) != "worse":
        return None
    return _falling_text(judged_by, best, measured[-1], rows, len(measured), rewards)


def _falling_text(
    judged_by: Metric, best: Evaluation, now: Evaluation, rows: int, evaluations: int, rewards: tuple[float, float]
) -> str:
    return (
        f"{judged_by.label} went from {short(best.value)} at step {best.step} to {short(now.value)} at step {now.step}"
        f", more than the chance differences of {rows} rows in {evaluations} evaluations, while the training reward "
        f"rose from {short(rewards[0])} to {short(rewards[1])}: the policy learns what the reward pays for, not what "
        "the held-out rows ask. Read the newest samples for what is rewarded wrongly; try a lower "
        f"optimizer.actor_lr, a larger KL coefficient or fewer steps (step {best.step} was better)"
    )


CHECKS: dict[str, Callable[[Sequence[Record]], str | None]] = {
    "flat groups": _zero_std_groups,
    "entropy": _collapsed_entropy,
    "KL": _kl_runs_away,
    "truncation": _cut_completions,
    "missing rewards": _missing_rewards,
    "judge": _failing_judge,
}


class History:
    """The first and last records of a run, which `warnings_of` needs, and the held-out metrics of all."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._kept: list[Record] = []
        self.evaluations: list[Record] = []
        """Steps with held-out metrics, step 0 included."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        held_out = {name: value for name, value in record.items() if name.startswith("eval/")}
        if held_out:
            self.evaluations.append({"step": record["step"], **held_out})
        if record.get("step", 1) > 0:
            self._kept.append(record)
            if len(self._kept) > HISTORY_LENGTH:
                del self._kept[FIRST]

    def risen_rewards(self) -> tuple[float, float] | None:
        """The mean reward of the first steps and of the last ones, if it is now above each of the first."""
        values = _values(self._kept, "reward")
        first, last = values[:FIRST], values[FIRST:]
        if len(last) < 2 or fmean(last) <= max(first):
            return None
        return fmean(first), fmean(last)

    def warnings(self) -> dict[str, str]:
        return warnings_of(self._kept)


def _values(steps: Sequence[Record], key: str) -> list[float]:
    return [value for record in steps if isinstance(value := record.get(key), int | float) and value == value]


def _last(steps: Sequence[Record], key: str) -> list[float]:
    """Values of the last steps; empty where one of them has none."""
    values = _values(steps[-LAST:], key)
    return values if len(values) == len(steps[-LAST:]) else []
