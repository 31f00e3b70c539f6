"""What a report opens with: each run's verdict, the curve that shows it, and the rows whose score changed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from vigneron.report.figures import Panel, as_svg, comparison_figure, for_page
from vigneron.run_store.code_version import code_version
from vigneron.run_store.eval_rows import SCORES
from vigneron.run_store.outcome import Outcome
from vigneron.run_store.outcome_text import best_text, next_steps, outcome_text
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.series import Records, series
from vigneron.run_store.status import RunStatus

ROWS_READ = 2000
ROWS_SHOWN = 40
SAME = 1e-6
"""A smaller change of a row's reward is rounding."""

Change = Literal["better", "worse", ""]


@dataclass(frozen=True)
class RowPair:
    """A held-out row at the first and at the last evaluation."""

    before: Sample
    after: Sample
    change: Change


@dataclass(frozen=True)
class RowPairs:
    shown: list[RowPair]
    """Changed rows first."""
    rows: int
    better: int
    worse: int


def verdict_part(name: str, outcome: Outcome, status: RunStatus) -> dict[str, Any]:
    steps = next_steps(outcome, status) if status.state == "finished" else []
    text = outcome_text(outcome)
    return {
        "name": name,
        "verdict": outcome.verdict,
        "text": text[0].upper() + text[1:],
        "best": best_text(outcome),
        "next": steps,
    }


def outcome_figure(outcomes: Sequence[Outcome], metrics: Mapping[str, Records]) -> Markup:
    """The held-out metric of the verdict over the steps, of all runs that have it; empty where nothing was measured
    twice."""
    first = next((one for one in outcomes if one.after is not None), None)
    if first is None:
        return Markup("")
    runs = {name: [records] for name, records in metrics.items() if series(records, first.metric)[0]}
    panel = Panel(first.label, first.metric, measured=True)
    figure = comparison_figure(runs, panels=[panel], columns=1, legend=len(metrics) > 1, width=4.8)
    if len(runs) == 1 and first.before is not None:
        figure.axes[0].axhline(first.before.value, color="grey", linestyle="--", linewidth=0.9, zorder=0.5)
    return Markup(for_page(as_svg(figure), "outcome", first.label))


def row_pairs(folder: Path, metric: str, *, by_verdict: bool) -> RowPairs:
    """Held-out completions of the first and of the last evaluation, with whether the score of each changed: the score
    that the metric is the mean of, else the checker's verdict or the reward."""
    score = SCORES.get(metric, "correct" if by_verdict else "reward")
    pairs = [RowPair(one, two, _change(one, two, score)) for one, two in before_and_after(folder, ROWS_READ)]
    shown = sorted(pairs, key=lambda pair: not pair.change)[:ROWS_SHOWN]
    counts = {word: sum(pair.change == word for pair in pairs) for word in ("better", "worse")}
    return RowPairs(shown, len(pairs), counts["better"], counts["worse"])


def _change(before: Sample, after: Sample, score: str) -> Change:
    first, second = getattr(before, score), getattr(after, score)
    if first is None or second is None or abs(second - first) <= SAME:
        return ""
    return "better" if second > first else "worse"


def before_and_after(folder: Path, limit: int = ROWS_SHOWN) -> list[tuple[Sample, Sample]]:
    """Held-out completions of the first and of the last evaluation."""
    if not (folder / "samples.sqlite").is_file():
        return []
    store = SampleStore(folder, read_only=True)
    try:
        steps = store.steps("eval")
        if len(steps) < 2:
            return []
        before, after = (
            {sample.sample: sample for sample in store.page(step=step, kind="eval", limit=limit)}
            for step in (steps[0], steps[-1])
        )
        # A role of a game may have had no turn in one of them.
        return [(before[number], after[number]) for number in before if number in after]
    finally:
        store.close()


def made_text() -> str:
    """When, and by which version, a report is written."""
    return f"Written {date_text(time.time())} by {version_text(code_version())}"


def run_text(status: RunStatus) -> str:
    """When a run began and ended, and the code that trained it, where that is recorded."""
    dates = [f"{word} {date_text(at)}" for word, at in (("began", status.began), ("ended", status.ended)) if at]
    code = [f"trained by {version_text(status.code)}"] if status.code else []
    own = [f"in a repository at commit {status.code['commit']}"] if status.code.get("commit") else []
    return ", ".join(("Run", *dates, *code, *own)).replace("Run, ", "Run ", 1) if dates or code else ""


def version_text(code: Mapping[str, str]) -> str:
    commit = f" (commit {code['vigneron_commit']})" if code.get("vigneron_commit") else ""
    return f"Vigneron {code.get('vigneron', 'of an unknown version')}{commit}"


def date_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
