"""Figures of runs: reward, accuracy, entropy and KL side by side, as the paper's."""

import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib

matplotlib.use("agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vigneron.report.curves import Records, over_runs, series, smoothed, thinned, thinned_band

# Told apart by people who see colours differently (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
Dashes = Literal["-", "--", ":", "-."]
DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")
"""For the next lines, when the colours are used up."""
SMOOTHED_FROM = 30
"""A line of more points is drawn faint, with its smoothed one before it."""
DOTS_UP_TO = 50


@dataclass(frozen=True)
class Panel:
    title: str
    key: str
    eval_key: str | None = None
    """Shown as dots beside the line."""
    measured: bool = False
    """Every value is exact (greedy, on all of the held-out part): joined dots, never smoothed."""


REWARD = Panel("reward (training)", "reward")
DYNAMICS = (
    Panel("entropy (nats a token)", "entropy"),
    Panel("KL to the start (nats a token)", "kl"),
    Panel("KL between steps (nats a token)", "kl_previous"),
)
LOSSES = (
    Panel("negative log-likelihood (line: training, dots: held out)", "loss/nll", "eval/loss/nll"),
    Panel("DPO's loss (line: training, dots: held out)", "loss/dpo", "eval/loss/dpo"),
    Panel("Bradley-Terry loss (line: training, dots: held out)", "loss/bradley_terry", "eval/loss"),
    Panel("cross-entropy (line: training, dots: held out)", "loss/preference", "eval/loss"),
    Panel("cross-entropy (line: training, dots: held out)", "loss/score", "eval/loss"),
)
PREFERENCES = (
    Panel("margin (line: training, dots: held out)", "margin", "eval/margin"),
    Panel("rewards' margin (line: training, dots: held out)", "rewards/margins", "eval/rewards/margins"),
    Panel("pairs that are right (line: training, dots: held out)", "rewards/accuracies", "eval/rewards/accuracies"),
    Panel("error of the score (line: training, dots: held out)", "score_error", "eval/score_error"),
)
ON_THE_WAY = (
    Panel("reward of what is kept", "kept/reward"),
    Panel("groups of equal rewards", "frac_reward_zero_std"),
    Panel("variance the critic explains", "critic/explained_variance"),
    Panel("tokens a completion", "completions/mean_length"),
)
PANELS = (REWARD, Panel("accuracy (line: sampled, dots: held out)", "accuracy", "eval/accuracy"), *DYNAMICS)
SAMPLED = "reward"
"""Who logs it samples: elsewhere the lengths are the dataset's."""


def panels_of(runs: Sequence[Records], hidden: Collection[str] = ()) -> list[Panel]:
    """What these runs have, whatever their methods; `hidden` says nothing in any of them."""

    def has(key: str | None) -> bool:
        return key is not None and key not in hidden and any(series(records, key)[0] for records in runs)

    reward, accuracy, *dynamics = PANELS
    held_out = Panel("reward (held out, greedy)", "eval/reward", measured=True)
    wanted = (reward, held_out, accuracy, *LOSSES, *PREFERENCES, *dynamics, *ON_THE_WAY)
    found = [panel for panel in wanted if has(panel.key) or (panel is accuracy and has(panel.eval_key))]
    return [panel for panel in found if panel.key != "completions/mean_length" or has(SAMPLED)]


COMPARED = (
    REWARD,
    Panel("accuracy (training, sampled)", "accuracy"),
    Panel("accuracy (held out, greedy)", "eval/accuracy", measured=True),
    *DYNAMICS,
)


def comparison_figure(
    arms: Mapping[str, Sequence[Records]], *, panels: Sequence[Panel] = PANELS, columns: int = 5, x: str = "step"
) -> Figure:
    """One panel a figure of merit, one colour an arm. An arm is one run or several seeds: their mean, in a band."""
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(min(17.0, 4.2 * columns), 3.2 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, axis in zip(panels, axes, strict=False):
        for runs, (colour, dashes) in zip(arms.values(), _styles(len(arms)), strict=True):
            _draw(axis, panel, runs, x, colour, dashes)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(x, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    # Of every arm, also of one that has nothing in the first panel.
    handles = [
        Line2D([], [], color=colour, linestyle=dashes, label=_label(name))
        for name, (colour, dashes) in zip(arms, _styles(len(arms)), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(arms)), frameon=False, fontsize=9)
    return figure


def _draw(axis: Axes, panel: Panel, runs: Sequence[Records], x: str, colour: str, dashes: Dashes) -> None:
    lines = [line for line in (series(records, panel.key, x) for records in runs) if line[0]]
    raw = over_runs(lines)
    smooth = not panel.measured and len(raw.xs) > SMOOTHED_FROM
    shown = over_runs([(xs, smoothed(values)) for xs, values in lines]) if smooth else raw
    if smooth:
        axis.plot(*thinned(raw.xs, raw.means), color=colour, alpha=0.3, linewidth=0.8, zorder=1)
    if len(lines) > 1:
        band = thinned_band(shown, 200)
        axis.fill_between(band.xs, band.lows, band.highs, color=colour, alpha=0.2, linewidth=0, zorder=1.5)
    if shown.xs:
        dots = "o" if panel.measured and len(shown.xs) <= DOTS_UP_TO else None
        points = thinned(shown.xs, shown.means, 200 if smooth else 400)
        axis.plot(*points, color=colour, linestyle=dashes, marker=dots, markersize=4)
    if panel.eval_key:
        dots_of = over_runs([series(records, panel.eval_key, x) for records in runs])
        axis.plot(*thinned(dots_of.xs, dots_of.means), "o", color=colour, markersize=6)


def as_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    # No date and a fixed salt: the same run gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "vigneron"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return smaller(text[text.index("<svg") :])


def smaller(svg: str) -> str:
    """The same picture in fewer bytes."""
    svg = re.sub(r' d="[^"]*"', _shorter, svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def on_a_page(svg: str) -> str:
    """In the page's own colours, light or dark: what is black becomes the text's colour, and white paper none."""
    svg = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", svg)
    svg = re.sub(r"fill: #ffffff", "fill: none", svg)
    # Paths without a style of their own (letters) are black unless their parent says otherwise.
    return svg.replace("<svg ", '<svg fill="currentColor" ', 1)


def _shorter(path: re.Match[str]) -> str:
    """Rounded coordinates, and no L before each point of a line: after the first point it is implied."""
    text = re.sub(r"\d+\.\d+", _rounded, path[0])
    return re.sub(r"([ML] [-\d.\s]+)((?:L [-\d.\s]+)+)", lambda line: line[1] + line[2].replace("L ", ""), text)


def _rounded(number: re.Match[str]) -> str:
    """To a tenth of a point, which is finer than a screen; in small shapes (dots) to a hundredth."""
    value = float(number[0])
    return f"{value:.{1 if value >= 10 else 2}f}".rstrip("0").rstrip(".")


def _label(name: str) -> str:
    """As it is: to matplotlib a leading underscore hides it, and dollars make a formula."""
    return " " * name.startswith("_") + name.replace("$", r"\$")


def _styles(count: int) -> list[tuple[str, Dashes]]:
    """(colour, dashes) of each arm."""
    return [(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]) for i in range(count)]
