"""The metrics that represent a run: common ones and its method's own, without those that say nothing in this run.

No torch is imported: `vigneron runs` and `vigneron show` answer quickly.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from vigneron.config import METHOD, MethodOptions
from vigneron.run_store.metric_table import Metric, in_order, metric
from vigneron.values import is_number

COMMON = ("reward", "accuracy", "entropy", "kl", "frac_reward_zero_std", "turns/mean", "eval/accuracy", "eval/reward")
"""Shown for every method that logs them; a method's options class has the others (`metrics`)."""
OPEN_TASKS = ("instructions", "rubric")
"""Built-in tasks whose answers are sentences: no completion equals them exactly."""


def headline_metrics(
    config: Mapping[str, Any], records: Iterable[Mapping[str, Any]], options: MethodOptions | None = None
) -> list[Metric]:
    """The headline metrics that these records have; `config` is the run's, as written. `options`: the method's, where
    they are loaded (a user's own method is not imported to list runs)."""
    records = list(records)
    hidden = {"eval/reward"} if _eval_reward_says_nothing(_part(config, "reward")) else set()
    metrics = []
    for key in headline_keys(config, options):
        values = [record[key] for record in records if is_number(record.get(key))]
        always_zero = key in ("accuracy", "eval/accuracy") and not any(values)
        if values and key not in hidden and not (always_zero and is_open_task(config)):
            metrics.append(metric(key))
    return metrics


def _eval_reward_says_nothing(reward: Mapping[str, Any]) -> bool:
    """`binary` equals eval/accuracy; a preference model has nothing to compare the one greedy completion with."""
    parts = reward.get("rewards") if reward.get("kind") == "combined" else [reward]
    kinds = {part.get("kind") for part in parts or [] if isinstance(part, Mapping)}
    return reward.get("kind") == "binary" or kinds == {"preference"}


def headline_keys(config: Mapping[str, Any], options: MethodOptions | None = None) -> list[str]:
    """In the order of the table, training before held out."""
    return in_order(dict.fromkeys((*COMMON, *(options or method_options(config)).metrics)))


def headline_values(config: Mapping[str, Any], values: Mapping[str, Any], limit: int = 3) -> list[tuple[Metric, float]]:
    """The few that represent a run in a list: at most two held-out ones first, then training."""
    headline = headline_metrics(config, [values])
    held_out = [one for one in headline if one.key.startswith("eval/")][:2]
    training = [one for one in headline if not one.key.startswith("eval/")]
    return [(one, values[one.key]) for one in (*held_out, *training)[:limit]]


def is_open_task(config: Mapping[str, Any]) -> bool:
    """Whether it is a built-in task that no completion can be right in. Of a user's own data a zero is shown."""
    return _part(config, "data").get("task") in OPEN_TASKS and has_open_answers(config)


def has_open_answers(config: Mapping[str, Any]) -> bool:
    """Whether the run has neither a checker nor answers to match exactly: an accuracy of 0 may then say nothing."""
    data, method = _part(config, "data"), method_options(config)
    if data.get("checker") or method.trains == "scorer":
        return False
    if data.get("task"):
        return data["task"] in OPEN_TASKS
    return _part(config, "reward").get("kind") != "binary" or method.reads == "demonstrations"


def method_options(config: Mapping[str, Any]) -> MethodOptions:
    """The method's options in a config as written; the defaults where this version does not know the method."""
    try:
        return METHOD.validate_python(config.get("method"))
    except ValidationError:
        return MethodOptions(name="unknown")


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key)
    return part if isinstance(part, Mapping) else {}
