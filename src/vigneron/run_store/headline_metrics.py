"""The figures that a person watches a run by: which of them its method has, and which of those mean something.

Light on purpose: `vigneron runs` and `vigneron show` load no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vigneron.values import even_ranges, is_number

BARS = "▁▂▃▄▅▆▇█"
SCORERS = ("reward_model", "preference_model", "score_model")
FREE_TASKS = ("instructions", "rubric")
"""Built-in tasks whose answers are sentences: nobody says them to the letter."""


class Watched(NamedTuple):
    label: str
    keys: tuple[str, ...]
    """Of these a run logs one."""
    lower_is_better: bool = False


TRAINING = (
    Watched("reward", ("reward",)),
    Watched("NLL", ("loss/nll",), True),
    Watched("DPO", ("loss/dpo",), True),
    Watched("Bradley-Terry", ("loss/bradley_terry",), True),
    Watched("cross-entropy", ("loss/preference", "loss/score"), True),
    Watched("score error", ("score_error",), True),
    Watched("margin", ("margin",)),
    Watched("rewards' margin", ("rewards/margins",)),
    Watched("kept", ("kept/reward",)),
    Watched("accuracy", ("accuracy",)),
    Watched("entropy", ("entropy",)),
    Watched("KL", ("kl",), True),
    Watched("flat groups", ("frac_reward_zero_std",), True),
)
HELD_OUT = (
    Watched("held-out accuracy", ("eval/accuracy",)),
    Watched("held-out pairs", ("eval/rewards/accuracies",)),
    Watched("held-out reward", ("eval/reward",)),
    Watched("held-out loss", ("eval/loss", "eval/loss/nll", "eval/loss/dpo"), True),
    Watched("held-out margin", ("eval/margin", "eval/rewards/margins")),
    Watched("held-out error", ("eval/score_error",), True),
)
WATCHED = (*TRAINING, *HELD_OUT)


class Shown(NamedTuple):
    """One figure of one run, with the key that this run logs it under."""

    label: str
    key: str
    lower_is_better: bool


def watched_in(config: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """What these records have and what means something in a run of this config (as written), in order."""
    records = list(records)
    zero_says_nothing = answers_are_free(config)
    found = []
    for watched in WATCHED:
        for key in watched.keys:
            values = [record[key] for record in records if is_number(record.get(key))]
            if not values or key in _repeated(config) or (key == "reward" and not _is_rewarded(config)):
                continue
            if zero_says_nothing and key in ("accuracy", "eval/accuracy") and not any(values):
                continue
            found.append(Shown(watched.label, key, watched.lower_is_better))
            break
    return found


def lower_is_better(figure: str) -> bool:
    return "loss" in figure.split("/") or figure.endswith("_error")


def answers_are_free(config: Mapping[str, Any]) -> bool:
    """Whether nothing was said of what counts as right: then an accuracy of 0 is only that no answer was repeated to
    the letter. A model that scores pairs or texts has an accuracy of its own."""
    data, method = _part(config, "data"), _part(config, "method").get("name")
    if data.get("checker") or method in SCORERS:
        return False
    if data.get("task"):
        return data["task"] in FREE_TASKS
    return _part(config, "reward").get("kind") != "binary" or method == "sft"


def headline(config: Mapping[str, Any], figures: Mapping[str, Any], most: int = 3) -> list[tuple[str, float]]:
    """The few that stand for a run in a list: of what is held out first, then of training."""
    shown = {figure.key: figure.label for figure in watched_in(config, [figures])}
    held_out = [key for key in shown if key.startswith("eval/")][:2]
    training = [key for key in shown if not key.startswith("eval/")]
    return [(shown[key], figures[key]) for key in (*held_out, *training)[:most]]


def short(value: float) -> str:
    """Three digits behind the point; of something small three that say something."""
    return f"{value:.3f}" if value != value or value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars; a value that is not a number is a gap."""
    values = values[-width:]
    real = [v for v in values if v == v]
    if not real:
        return ""
    low, high = min(real), max(real)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if v == v else " " for v in values)


def whole_sparkline(values: Sequence[float], width: int) -> str:
    """All values as at most so many bars, each the mean of its stretch."""
    if len(values) <= width:
        return sparkline(values, width)
    parts = [values[part.start : part.stop] for part in even_ranges(len(values), width)]
    return sparkline([sum(part) / len(part) for part in parts], width)


def _repeated(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Held-out rewards that are the held-out accuracy once more."""
    return ("eval/reward",) if _part(config, "reward").get("kind") == "binary" else ()


def _is_rewarded(config: Mapping[str, Any]) -> bool:
    return _part(config, "method").get("name") not in ("sft", *SCORERS)


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key)
    return part if isinstance(part, Mapping) else {}
