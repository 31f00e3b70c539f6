"""Figures of runs: reward, accuracy, entropy and KL side by side, as the paper's."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]

# Told apart by people who see colours differently (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@dataclass(frozen=True)
class Panel:
    title: str
    key: str
    eval_key: str | None = None


PANELS = (
    Panel("reward (training)", "reward"),
    Panel("accuracy (line: sampled, dots: held out)", "accuracy", "eval/accuracy"),
    Panel("entropy (nats a token)", "entropy"),
    Panel("KL to the start (nats a token)", "kl"),
    Panel("KL between steps (nats a token)", "kl_previous"),
)


def comparison_figure(runs: Mapping[str, Records], title: str | None = None) -> Figure:
    """One panel a figure of merit, one colour a run."""
    figure = Figure(figsize=(17, 3.2), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for panel, axis in zip(PANELS, axes, strict=True):
        for (run, records), colour in zip(runs.items(), _colours(), strict=False):
            name = " " * run.startswith("_") + run.replace("$", r"\$")  # hidden, or a formula, to matplotlib otherwise
            steps, values = series(records, panel.key)
            faint = len(values) > 30
            axis.plot(steps, values, color=colour, alpha=0.3 if faint else 1.0, label=None if faint else name)
            if faint:
                axis.plot(steps, smoothed(values), color=colour, label=name)
            if panel.eval_key:
                axis.plot(*series(records, panel.eval_key), "o", color=colour, markersize=6)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    axes[0].legend(frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def series(records: Records, key: str) -> tuple[list[int], list[float]]:
    points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start."""
    mean, norm, out = 0.0, 0.0, []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out.append(mean / norm)
    return out


def as_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    # No date and a fixed salt: the same run gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "vigneron"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _colours() -> list[str]:
    return list(COLOURS) * 10
