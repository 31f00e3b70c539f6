"""What a run reached, in words, and what to do next."""

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vigneron.distributed.launch import resume_command
from vigneron.errors import visible
from vigneron.files import lines_of
from vigneron.run_store.folder import record_of
from vigneron.run_store.headline_metrics import method_options
from vigneron.run_store.outcome import Outcome, outcome_json, stored_outcome
from vigneron.run_store.status import RunStatus
from vigneron.values import short

HELD_OUT_KEYS = "data.held_out=FILE and eval_every=10 show"
LOWER_LR = 3.0
"""A learning rate to try next, where the run made things worse: this times lower."""
POWER = 2.04
MOST_ROWS = 100_000
"""Held-out rows that are still advised."""


def outcome_text(outcome: Outcome) -> str:
    """One sentence: the verdict first, then the numbers."""
    label, before, after = visible(outcome.label), outcome.before, outcome.after
    if before is None:
        unknown = outcome.no_value is not None
        return f"no verdict: {'no evaluation has a value' if unknown else 'nothing was evaluated on held-out rows'}"
    if after is None:
        return f"no verdict: {label} is {short(before.value)} at step {before.step}, the only evaluation{_gap(outcome)}"
    better = ", lower is better" if outcome.lower_is_better else ""
    verdict, moved = outcome.verdict, f"{label} {_moved(before.value, after.value)}"
    if verdict == "no interval":
        why = "no scores of single rows are kept, so there is no interval"
        return f"no verdict: {moved}{better}; {why}{_gap(outcome)}"
    interval = f"95 % interval of the change {change_text(outcome)}" if outcome.change else "one row has no interval"
    if verdict == "undecided":
        rows = f"{outcome.rows} held-out row{'s' * (outcome.rows != 1)}"
        return f"no difference that {rows} could show: {moved} ({interval}{better}){_gap(outcome)}"
    return f"{verdict}: {moved} ({interval}, {outcome.rows} held-out rows{better}){_gap(outcome)}"


def ended_outcome(status: RunStatus) -> dict[str, Any] | None:
    """The outcome of a run that has ended, with its `text`, as JSON; None while it runs, and of older runs."""
    outcome = stored_outcome(status.outcome)
    return None if outcome is None else {**outcome_json(outcome), "text": outcome_text(outcome)}


def outcome_cell(outcome: Outcome) -> str:
    """For a list of runs; empty without two evaluations."""
    if outcome.before is None or outcome.after is None:
        return ""
    word = outcome.verdict if outcome.verdict != "no interval" else ""
    return f"{short(outcome.before.value)} → {short(outcome.after.value)} {word}".rstrip()


def change_text(outcome: Outcome) -> str:
    """As in `−0.300 to +0.041`."""
    if outcome.change is None:
        return ""
    return " to ".join(signed(value) for value in (outcome.change.low, outcome.change.high))


def signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{short(abs(value))}"


def best_text(outcome: Outcome) -> str:
    """The best step and whether its checkpoint exists; empty where nothing was evaluated after the first step."""
    best, before = outcome.best, outcome.before
    if best is None or before is None:
        return ""
    sign = -1 if outcome.lower_is_better else 1
    if before.step == 0 and sign * best.value <= sign * before.value:
        value = f"{visible(outcome.label)} {short(before.value)}"
        return f"no step is better than the model before training ({value})"
    saved = "checkpoint saved" if outcome.best_saved else "its checkpoint was not saved, or is deleted"
    last = ", the last" if outcome.after is not None and best.step == outcome.after.step else ""
    return f"step {best.step}{last}: {visible(outcome.label)} {short(best.value)} ({saved})"


def next_steps(outcome: Outcome, status: RunStatus) -> list[tuple[str, str]]:
    """One or two things to do, each with its name: a command, or a sentence."""
    if outcome.verdict == "not evaluated":
        data = _part(status.config, "data")
        keys = "eval_every=10 shows" if data.get("task") or data.get("held_out") else HELD_OUT_KEYS
        return [("try", f"{keys} whether the model gets better on rows it never saw")]
    if outcome.verdict == "worse":
        return _after_worse(outcome, status)
    if outcome.verdict == "undecided":
        return _after_undecided(outcome, status)
    if outcome.verdict == "better":
        return [("export", f"vigneron export {_path(status)} DIR{_at_best(outcome)}")]
    return []


def _after_worse(outcome: Outcome, status: RunStatus) -> list[tuple[str, str]]:
    again, steps = f"vigneron train {_path(status)}/config.yaml", []
    best, before, sign = outcome.best, outcome.before, -1 if outcome.lower_is_better else 1
    if best is not None and before is not None and sign * best.value > sign * before.value:
        kept = f"vigneron export {_path(status)} DIR --step {best.step}"
        steps.append(("export", kept) if outcome.best_saved else ("try", f"{again} steps={best.step}"))
    rate = _part(status.config, "optimizer").get("actor_lr")
    if isinstance(rate, float | int) and method_options(status.config).steps_by_gradient:
        steps.append(("try", f"{again} optimizer.actor_lr={rate / LOWER_LR:.2g}"))
    return steps


def _after_undecided(outcome: Outcome, status: RunStatus) -> list[tuple[str, str]]:
    steps = []
    if method_options(status.config).learns_from_reward and _constant_reward(status.path):
        why = "no two rewards of a step ever differed, so there was nothing to learn: read samples and reward in"
        return [("try", f"{why} `vigneron view {_path(status)}`")]
    if (rows := rows_needed(outcome)) is not None and not _part(status.config, "data").get("task"):
        steps.append(("try", f"about {rows} held-out rows (data.held_out) would show a change of this size"))
    if status.state == "finished" and status.steps:
        shard = _part(status.config, "scale").get("shard")
        resume = resume_command(status.path, shard if isinstance(shard, int) else 1)
        steps.append(("train further", f"{resume} steps={2 * status.steps}"))
    return steps


def _constant_reward(path: Path) -> bool:
    """Whether no two rewards of a step differ, in any step. Most files are read up to their first step only."""
    recorded = False
    try:
        for line in lines_of(path / "metrics.jsonl"):
            spread = record_of(line).get("reward_std")
            if spread:
                return False
            recorded = recorded or spread is not None
    except (OSError, ValueError):  # damaged
        return False
    return recorded


def rows_needed(outcome: Outcome) -> int | None:
    """About how many rows would show a change of this size in four of five draws: the width of an interval falls with
    their square root, and ((1.96 + 0.84) / 1.96)² = 2.04. None if there is no change, or more than `MOST_ROWS` would be
    needed."""
    change = outcome.change
    if change is None or change.mean == 0:
        return None
    reach = (change.high - change.low) / 2
    if abs(change.mean) <= reach * math.sqrt(POWER * outcome.rows / MOST_ROWS):  # next to nothing: rounding, or chance
        return None
    needed = POWER * outcome.rows * (reach / abs(change.mean)) ** 2
    digits = max(0, math.floor(math.log10(needed)) - 1)
    return max(outcome.rows + 1, math.ceil(needed / 10**digits) * 10**digits)


def _at_best(outcome: Outcome) -> str:
    best = outcome.best
    return f" --step {best.step}" if best is not None and outcome.best_saved and not outcome.best_is_last else ""


def _moved(before: float, after: float) -> str:
    if short(before) == short(after):
        return f"stayed at {short(after)}"
    return f"{'rose' if after > before else 'fell'} from {short(before)} to {short(after)}"


def _gap(outcome: Outcome) -> str:
    """Evaluations that are missing at either end."""
    later = f"; the evaluation of step {outcome.no_value} has no value" if outcome.no_value is not None else ""
    before = outcome.before
    if before is None or before.step == 0 or outcome.after is None:
        return later
    return f"; the first evaluation with a value is that of step {before.step}{later}"


def _path(status: RunStatus) -> str:
    return shlex.quote(str(status.path))


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key)
    return part if isinstance(part, Mapping) else {}
