"""report.html: one file, nothing fetched, everything a model wrote escaped."""

import math
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
from vigneron.run_store.series import Records, series
from vigneron.report.figures import REWARD, as_svg, comparison_figure, on_a_page, panels_of
from vigneron.report.rubric_part import rubric_part
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.headline_metrics import Shown, answers_are_free, watched_in
from vigneron.run_store.notices import kept_notices
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.status import status_of
from vigneron.text import plain
from vigneron.training.rubric_audit import FOOLED

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


COMPLETIONS_SHOWN = 40


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Compare runs in one page; without `out` it goes into the first run's folder."""
    folders = [RunFolder.open(run) for run in runs]
    names = _names(folders)
    metrics = {name: folder.metrics() for name, folder in zip(names, folders, strict=True)}
    if not any(metrics.values()):
        raise UserError("there is nothing to report yet: no step has been logged")
    configs = [folder.config() for folder in folders]
    page = rendered(
        "report.html",
        title=" and ".join(metrics),
        fooled=FOOLED,
        figure=Markup(figure_of(configs, metrics)),
        summary=summary_of(names, configs, list(metrics.values())),
        runs=[
            shown_run(name, folder, config, metrics[name])
            for name, folder, config in zip(names, folders, configs, strict=True)
        ],
    )
    path = Path(out) if out is not None else folders[0].path / "report.html"
    write_for_user(path, page)
    return path


def figure_of(configs: Sequence[Config], metrics: Mapping[str, Records]) -> str:
    """One panel for each figure that a run has; what says nothing in all of them is left out."""
    hidden = [hidden_keys(c.model_dump(mode="json"), r) for c, r in zip(configs, metrics.values(), strict=True)]
    panels = panels_of(list(metrics.values()), set.intersection(*hidden)) or [REWARD]
    columns = len(panels) if len(panels) <= 5 else math.ceil(len(panels) / math.ceil(len(panels) / 4))
    figure = comparison_figure({n: [records] for n, records in metrics.items()}, panels=panels, columns=max(2, columns))
    return on_a_page(as_svg(figure))


def shown_run(name: str, folder: RunFolder, config: Config, records: Records) -> dict[str, Any]:
    status, pairs = status_of(folder.path), before_and_after(folder.path)
    return {
        "name": name,
        "state": status.state,
        "error": status.error,
        "notices": kept_notices(folder.path),
        "pairs": pairs,
        "has_answers": any(before.answer for before, _ in pairs),
        "answer_is": "parent" if config.method.reads == "prompts" else "answer",
        "judges": not answers_are_free(config.model_dump(mode="json")),
        "shows_rewards": has_reward(config) and config.reward.kind != "binary",
        "rubric": rubric_part(folder, config, records),
        "config": config_yaml(config),
    }


def rendered(template: str, **values: Any) -> str:
    """A page of this package's, with every value escaped that is not `Markup`."""
    environment = Environment(loader=PackageLoader("vigneron", "report"), autoescape=True)
    environment.filters["plain"] = plain
    return environment.get_template(template).render(values)


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """The folders' own names, or their whole paths where two are alike."""
    paths = [folder.path.resolve() for folder in folders]
    short = [path.name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def summary(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Held-out figures before and after, and the last of training."""
    config = folder.config()
    evals = [r for r in records if r.get("eval/accuracy") is not None]
    steps = [r for r in records if r.get("reward") is not None]
    return {
        "name": folder.path.name,
        "reward_kind": config.reward.kind,
        "steps": records[-1]["step"] if records else 0,
        "before": evals[0]["eval/accuracy"] if evals else None,
        "after": evals[-1]["eval/accuracy"] if len(evals) > 1 else None,
        "included_before": evals[0].get("eval/answer_included") if evals else None,
        "included_after": evals[-1].get("eval/answer_included") if len(evals) > 1 else None,
        "reward": steps[-1]["reward"] if steps else None,
        "entropy": steps[-1].get("entropy") if steps else None,
        "kl": steps[-1].get("kl") if steps else None,
    }


def before_and_after(folder: Path) -> list[tuple[Sample, Sample]]:
    """Held-out completions of the first and of the last evaluation."""
    if not (folder / "samples.sqlite").is_file():
        return []
    store = SampleStore(folder, read_only=True)
    try:
        steps = store.steps("eval")
        if len(steps) < 2:
            return []
        before = store.page(step=steps[0], kind="eval", limit=COMPLETIONS_SHOWN)
        after = store.page(step=steps[-1], kind="eval", limit=COMPLETIONS_SHOWN)
        return list(zip(before, after, strict=True))
    finally:
        store.close()
