"""Plots of runs side by side: reward, accuracy, losses, entropy, KL."""

import io
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib

matplotlib.use("agg")
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vigneron.errors import visible
from vigneron.run_store.metric_table import FAMILIES, METRICS, RUBRIC, Metric, metric
from vigneron.run_store.series import Records, over_runs, series, smoothed, thinned, thinned_band

# Distinguishable with colour blindness (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
Dashes = Literal["-", "--", ":", "-."] | tuple[int, tuple[int, ...]]
DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")
"""For further lines, when all colours are used."""
MEMBER_DASHES: tuple[Dashes, ...] = (*DASHES, (0, (6, 1, 1, 1, 1, 1)), (0, (1, 4)))
"""For the lines of one arm, where colours stand for arms."""
SMOOTHED_FROM = 30
"""A line of more points is drawn faint, with the smoothed line in front."""
DOTS_UP_TO = 50


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    title: str
    key: str
    eval_key: str | None = None
    """Held-out values, drawn as dots beside the line."""
    measured: bool = False
    """Every value is exact (greedy, on all held-out rows): joined dots, never smoothed."""
    members: tuple[tuple[str, str], ...] = ()
    """Lines of one plot, as (label, key), where `key` is a family such as `curriculum/level/LEVEL`."""


REWARD = Panel(metric("reward").panel, "reward")
DYNAMICS = tuple(Panel(metric(key).panel, key) for key in ("entropy", "kl", "kl_previous"))
WITH_DOTS = " (line: training, dots: held out)"
PANELS = (REWARD, Panel(f"{metric('accuracy').panel}{WITH_DOTS}", "accuracy", "eval/accuracy"), *DYNAMICS)
COMPARED = (
    REWARD,
    Panel(f"{metric('accuracy').panel} (training)", "accuracy"),
    Panel(f"{metric('accuracy').panel} (held out, greedy)", "eval/accuracy", measured=True),
    *DYNAMICS,
)


def panels_of(runs: Sequence[Records], hidden: Collection[str] = ()) -> list[Panel]:
    """The plots for which these runs have values, in the order of the table; `hidden` keys are left out."""

    def has(key: str) -> bool:
        return key not in hidden and any(series(records, key)[0] for records in runs)

    keys = dict.fromkeys(key for records in runs for record in records for key in record)
    panels = []
    for one in METRICS:
        if one.panel and one.section != RUBRIC and one in FAMILIES:
            panels += _family_panel(one, [key for key in keys if has(key)])
            continue
        if not one.panel or one.section == RUBRIC or one.key.startswith("eval/"):
            continue
        own, held_out = metric(f"eval/{one.key}"), _held_out_key(one.key, has)
        if own.panel:  # drawn by itself
            panels += [Panel(one.panel, one.key)] * has(one.key)
            panels += [Panel(own.panel, own.key, measured=True)] * has(own.key)
        elif has(one.key) or (one.key == "accuracy" and held_out is not None):
            panels.append(Panel(f"{one.panel}{WITH_DOTS if held_out else ''}", one.key, held_out))
    # Without a reward, nothing is sampled: the lengths are the dataset's.
    return [panel for panel in panels if panel.key != "completions/mean_length" or has("reward")]


def _family_panel(family: Metric, keys: Sequence[str]) -> list[Panel]:
    """One plot with a line for each metric of a family, named by the last part of its key; none without values."""
    prefix = family.key.rpartition("/")[0]
    members = sorted((key for key in keys if key.rpartition("/")[0] == prefix), key=_as_number)
    lines = tuple((key.rpartition("/")[2], key) for key in members)
    return [Panel(family.panel, family.key, measured=family.key.startswith("eval/"), members=lines)] if lines else []


def _as_number(key: str) -> tuple[float, str]:
    last = key.rpartition("/")[2]
    try:
        return float(last), last
    except ValueError:
        return math.inf, last


def _held_out_key(key: str, has: Callable[[str], bool]) -> str | None:
    """The same metric on held-out rows; reward and preference models log their loss as `eval/loss`."""
    candidates = (f"eval/{key}", *(["eval/loss"] if key.startswith("loss/") else []))
    return next((candidate for candidate in candidates if has(candidate)), None)


def comparison_figure(
    arms: Mapping[str, Sequence[Records]],
    *,
    panels: Sequence[Panel] = PANELS,
    columns: int = 5,
    x: str = "step",
    legend: bool = True,
    width: float = 4.2,
) -> Figure:
    """One panel per metric, one colour per arm. An arm is one run, or several seeds: their mean and a band.

    `width`: of a panel, in inches."""
    rows, legend_columns = math.ceil(len(panels) / columns), min(4, len(arms))
    legend_inches = 0.1 + 0.2 * math.ceil(len(arms) / legend_columns) if legend else 0.0
    figure = Figure(figsize=(min(17.0, width * columns), 3.2 * rows + legend_inches))
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=_margins(figure, rows, columns, legend_inches))
    axes = axes.flatten()
    for panel, axis in zip(panels, axes, strict=False):
        for runs, (colour, dashes) in zip(arms.values(), _styles(len(arms)), strict=True):
            if panel.members:
                _draw_members(axis, panel, runs, x, colour if len(arms) > 1 else None)
            else:
                _draw(axis, panel, runs, x, colour, dashes)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(x, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if not legend:
        return figure
    # For every arm, also one without values in the first panel.
    handles = [
        Line2D([], [], color=colour, linestyle=dashes, label=plain_label(name))
        for name, (colour, dashes) in zip(arms, _styles(len(arms)), strict=True)
    ]
    figure.legend(handles=handles, loc="lower center", ncols=legend_columns, frameon=False, fontsize=9, borderaxespad=0)
    return figure


def _margins(figure: Figure, rows: int, columns: int, legend_inches: float) -> dict[str, float]:
    """Room for labels and titles around each panel, and for the legend below. matplotlib's own layout engine finds the
    same, in as much time as the drawing itself takes."""
    left, right, bottom, top = 0.6, 0.12, 0.5, 0.35
    width, height = figure.get_size_inches()
    panel_width = width / columns - left - right
    panel_height = (height - legend_inches) / rows - bottom - top
    return {
        "left": left / width,
        "right": 1 - right / width,
        "bottom": (bottom + legend_inches) / height,
        "top": 1 - top / height,
        "wspace": (left + right) / panel_width,
        "hspace": (bottom + top) / panel_height,
    }


def _draw(axis: Axes, panel: Panel, runs: Sequence[Records], x: str, colour: str, dashes: Dashes) -> None:
    lines = [line for line in (series(records, panel.key, x) for records in runs) if line[0]]
    raw = over_runs(lines)
    smooth = not panel.measured and len(raw.xs) > SMOOTHED_FROM
    shown = over_runs([(xs, smoothed(values)) for xs, values in lines]) if smooth else raw
    if smooth:
        axis.plot(*thinned(raw.xs, raw.means, 200), color=colour, alpha=0.3, linewidth=0.8, zorder=1)
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


def _draw_members(axis: Axes, panel: Panel, runs: Sequence[Records], x: str, colour: str | None) -> None:
    """A line for each member: in colours of their own, or where the colour is the arm's, in dashes of their own."""
    handles = []
    for place, ((label, key), style) in enumerate(zip(panel.members, _styles(len(panel.members)), strict=True)):
        own = style if colour is None else (colour, MEMBER_DASHES[place % len(MEMBER_DASHES)])
        _draw(axis, Panel(panel.title, key, measured=panel.measured), runs, x, *own)
        handles.append(
            Line2D([], [], color=own[0] if colour is None else "grey", linestyle=own[1], label=plain_label(label))
        )
    axis.legend(handles=handles, fontsize=7, frameon=False, ncols=2)


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


def for_page(svg: str, name: str = "", label: str = "") -> str:
    """In the page's colours, light or dark: black becomes the text colour, the white background is removed. With a
    `name`, ids begin with it, so that a page can have several; the `label` is read to people who do not see it."""
    svg = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", svg)
    svg = re.sub(r"fill: #ffffff", "fill: none", svg)
    if name:
        svg = re.sub(r'(\bid="|"#|\(#)', rf"\1{name}-", svg)
    said = f'role="img" aria-label="{escape(label)}" ' if label else ""
    # Paths without a style (letters) take the fill of the root element.
    return svg.replace("<svg ", f'<svg fill="currentColor" {said}', 1)


def _shorter(path: re.Match[str]) -> str:
    """Rounded coordinates, and no L before each point of a line: after the first point it is implied."""
    text = re.sub(r"\d+\.\d+", _rounded, path[0])
    return re.sub(r"([ML] [-\d.\s]+)((?:L [-\d.\s]+)+)", lambda line: line[1] + line[2].replace("L ", ""), text)


def _rounded(number: re.Match[str]) -> str:
    """To a tenth of a point, which is finer than a screen; in small shapes (dots) to a hundredth."""
    value = float(number[0])
    return f"{value:.{1 if value >= 10 else 2}f}".rstrip("0").rstrip(".")


def plain_label(name: str) -> str:
    """Literally: matplotlib hides a leading underscore and reads dollars as a formula."""
    return " " * name.startswith("_") + visible(name).replace("$", r"\$")


def _styles(count: int) -> list[tuple[str, Dashes]]:
    """(colour, dashes) of each arm."""
    return [(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]) for i in range(count)]
