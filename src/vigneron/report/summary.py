"""A report's table: a row a run, and the figures that its method has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.config import Config
from vigneron.folder.watched import Shown, answers_are_free, watched_in
from vigneron.report.curves import Records, series

INCLUDED = Shown("answer included", "eval/answer_included", False)


@dataclass(frozen=True)
class SummaryRow:
    name: str
    method: str
    reward: str
    steps: int
    values: list[float | None]


@dataclass(frozen=True)
class Summary:
    headings: list[str]
    rows: list[SummaryRow]
    rewarded: bool
    """Whether any of the runs has a reward."""


def summary_of(names: Sequence[str], configs: Sequence[Config], metrics: Sequence[Records]) -> Summary:
    """Columns for all figures that at least one of the runs has: of what is held out before and after."""
    written = [config.model_dump(mode="json") for config in configs]
    shown = [figures_of(config, records) for config, records in zip(written, metrics, strict=True)]
    figures = list(dict.fromkeys(figure for some in shown for figure in some))
    figures.sort(key=lambda figure: not figure.key.startswith("eval/"))
    headings: list[str] = []
    for figure in figures:
        held_out = figure.key.startswith("eval/")
        headings += [f"{figure.label} before", "after"] if held_out else [figure.label]
    rows = [
        SummaryRow(
            name,
            config.method.name,
            config.reward.kind if has_reward(config) else "–",
            records[-1]["step"] if records else 0,
            [value for figure in figures for value in _values(figure, records if figure in own else [])],
        )
        for name, config, records, own in zip(names, configs, metrics, shown, strict=True)
    ]
    return Summary(headings, rows, any(has_reward(config) for config in configs))


def figures_of(written: Mapping[str, Any], records: Records) -> list[Shown]:
    found = watched_in(written, records)
    included = any(series(records, INCLUDED.key)[1]) or (
        not answers_are_free(written) and bool(series(records, INCLUDED.key)[1])
    )
    return [*found, INCLUDED] if included else found


def hidden_keys(written: Mapping[str, Any], records: Records) -> set[str]:
    """Accuracies, and held-out rewards, that say nothing in a run of this config."""
    shown = {figure.key for figure in watched_in(written, records)}
    return {"accuracy", "eval/accuracy", "eval/reward"} - shown


def has_reward(config: Config) -> bool:
    """Texts that are given are rewarded only where somebody asked for it: else the checker's verdict stands in."""
    return config.method.reads == "prompts" or (
        config.method.reads == "demonstrations" and config.reward.kind != "binary"
    )


def _values(figure: Shown, records: Records) -> list[float | None]:
    _, values = series(records, figure.key)
    last = values[-1] if values else None
    if not figure.key.startswith("eval/"):
        return [last]
    return [values[0] if values else None, last if len(values) > 1 else None]
