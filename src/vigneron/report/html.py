"""report.html: one file that loads nothing; all text written by a model is escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.files import write_for_user
from vigneron.recipe import config_yaml
from vigneron.report.figures import REWARD, as_svg, comparison_figure, for_page, panels_of
from vigneron.report.outcome_part import (
    before_and_after,
    made_text,
    outcome_figure,
    row_pairs,
    run_text,
    verdict_part,
)
from vigneron.report.rubric_part import rubric_part
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.headline_metrics import has_open_answers, headline_metrics
from vigneron.run_store.metric_table import Metric, metric
from vigneron.run_store.notices import Notice, kept_notices
from vigneron.run_store.outcome import outcome_of
from vigneron.run_store.sample_turns import turns_of_sample
from vigneron.run_store.samples import Sample
from vigneron.run_store.series import Records, series
from vigneron.run_store.status import status_of
from vigneron.text import plain
from vigneron.training.rubric_audit import FOOLED

INCLUDED = metric("eval/answer_included")
SIDE_BY_SIDE = 6
"""Rows of the table that the page opens with; the runs' own parts have more."""


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
    labels: list[str]
    """The headings, each of which can be read by itself."""
    rows: list[SummaryRow]
    rewarded: bool
    """Whether any of the runs has a reward."""


def summary_of(names: Sequence[str], configs: Sequence[Config], metrics: Sequence[Records]) -> Summary:
    """A column for every metric that one of the runs has; for held-out ones, before and after."""
    written = [config.model_dump(mode="json") for config in configs]
    by_run = [summary_metrics(config, records) for config, records in zip(written, metrics, strict=True)]
    columns = list(dict.fromkeys(metric for of_run in by_run for metric in of_run))
    columns.sort(key=lambda metric: not metric.key.startswith("eval/"))
    headings: list[str] = []
    labels: list[str] = []
    for column in columns:
        held_out = column.key.startswith("eval/")
        headings += [f"{column.label} before", "after"] if held_out else [column.label]
        labels += [f"{column.label} before", f"{column.label} after"] if held_out else [column.label]
    rows = [
        SummaryRow(
            name,
            config.method.name,
            config.reward.kind if has_reward(config) else "–",
            records[-1]["step"] if records else 0,
            [value for column in columns for value in _values(column, records if column in of_run else [])],
        )
        for name, config, records, of_run in zip(names, configs, metrics, by_run, strict=True)
    ]
    return Summary(headings, labels, rows, any(has_reward(config) for config in configs))


def summary_metrics(written: Mapping[str, Any], records: Records) -> list[Metric]:
    """The headline metrics, and how often the answer is included, where that says something."""
    metrics, included = headline_metrics(written, records), series(records, INCLUDED.key)[1]
    return [*metrics, INCLUDED] if any(included) or (included and not has_open_answers(written)) else metrics


def hidden_keys(written: Mapping[str, Any], records: Records) -> set[str]:
    """Accuracies and held-out rewards that say nothing in a run of this config."""
    shown = {metric.key for metric in headline_metrics(written, records)}
    return {"accuracy", "eval/accuracy", "eval/reward"} - shown


def has_reward(config: Config) -> bool:
    """Whether the run has a reward: demonstrations only where one is configured (`binary` is their default)."""
    return config.method.reads == "prompts" or (
        config.method.reads in ("demonstrations", "recorded") and config.reward.kind != "binary"
    )


def _values(metric: Metric, records: Records) -> list[float | None]:
    _, values = series(records, metric.key)
    last = values[-1] if values else None
    if not metric.key.startswith("eval/"):
        return [last]
    return [values[0] if values else None, last if len(values) > 1 else None]


def write_report(
    runs: Sequence[str | Path], out: str | Path | None = None, *, title: str | None = None, lead: Sequence[str] = ()
) -> Path:
    """Runs side by side in one page; without `out` it is written into the first run's folder. `lead`: paragraphs that
    it opens with."""
    folders = [RunFolder.open(run) for run in runs]
    names = _names(folders)
    metrics = {name: folder.metrics() for name, folder in zip(names, folders, strict=True)}
    if not any(metrics.values()):
        raise UserError("nothing to report yet: these runs have logged no step")
    configs = [folder.config() for folder in folders]
    sections = [
        run_section(name, folder, config, metrics[name])
        for name, folder, config in zip(names, folders, configs, strict=True)
    ]
    figure = outcome_figure([section["outcome"] for section in sections], metrics)
    page = rendered(
        "report.html",
        title=title or " and ".join(metrics),
        lead=lead,
        canary_limit=FOOLED,
        made=made_text(),
        figure=figure,
        panels=panels_part(configs, metrics, legend=len(sections) > 1 and not figure),
        summary=summary_of(names, configs, list(metrics.values())),
        side_by_side=side_by_side(sections),
        runs=sections,
    )
    path = Path(out) if out is not None else folders[0].path / "report.html"
    write_for_user(path, page)
    return path


def panels_part(configs: Sequence[Config], metrics: Mapping[str, Records], *, legend: bool) -> list[Markup]:
    """One plot for each metric that a run has; those that say nothing in any run are left out."""
    hidden = [hidden_keys(c.model_dump(mode="json"), r) for c, r in zip(configs, metrics.values(), strict=True)]
    panels = panels_of(list(metrics.values()), set.intersection(*hidden)) or [REWARD]
    arms = {name: [records] for name, records in metrics.items()}
    figures = [comparison_figure(arms, panels=[panel], columns=1, legend=legend) for panel in panels]
    names = [f"{panel.title} by step" for panel in panels]
    return [Markup(for_page(as_svg(one), f"panel{n}", names[n])) for n, one in enumerate(figures)]


def run_section(name: str, folder: RunFolder, config: Config, records: Records) -> dict[str, Any]:
    status, pairs = status_of(folder.path), before_and_after(folder.path)
    outcome, by_verdict = outcome_of(status), not has_open_answers(config.model_dump(mode="json"))
    return {
        "name": name,
        "outcome": outcome,
        "verdict": verdict_part(name, outcome, status),
        "about": run_text(status),
        "changes": row_pairs(folder.path, outcome.metric, by_verdict=by_verdict),
        "state": status.state,
        "error": status.error,
        "notices": [*kept_notices(folder.path), *(Notice(0, line, "warning") for line in damage_of(folder.path))],
        "pairs": pairs,
        "has_answers": any(before.answer for before, _ in pairs),
        "answer_is": "reference" if config.method.reads in ("prompts", "recorded") else "answer",
        "shows_verdicts": by_verdict,
        "shows_rewards": has_reward(config) and config.reward.kind != "binary",
        "rubric": rubric_part(folder, config, records),
        "conversations": any(turns_of_sample(sample) for pair in pairs for sample in pair),
        "config": config_yaml(config),
    }


def side_by_side(runs: Sequence[Mapping[str, Any]]) -> list[tuple[Sample, list[Sample]]]:
    """Of runs that began alike, on the same held-out prompts: each completion before training, and after each of them.
    Otherwise nothing."""
    pairs: list[list[tuple[Sample, Sample]]] = [run["pairs"] for run in runs]
    begun = {tuple((before.prompt, before.completion) for before, _ in own) for own in pairs}
    if len(runs) < 2 or len(begun) > 1 or not pairs[0]:
        return []
    return [(each[0][0], [after for _, after in each]) for each in zip(*pairs, strict=True)][:SIDE_BY_SIDE]


def rendered(template: str, **values: Any) -> str:
    """A template of this package. Every value that is not `Markup` is escaped, its invisible characters too."""
    environment = Environment(loader=PackageLoader("vigneron", "report"), autoescape=True, finalize=_shown)
    environment.filters |= {"plain": plain, "turns": turns_of_sample}
    return environment.get_template(template).render(values)


def _shown(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """The folders' names, or their paths where two are equal."""
    paths = [folder.path.resolve() for folder in folders]
    short = [path.name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]
