"""Intervals of a comparison as a picture, and as a bar of characters for the terminal."""

from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vigneron.report.figures import COLOURS, plain_label
from vigneron.report.paired_intervals import Estimate

MOST_DRAWN = 40
WIDTH = 25
"""Characters of a bar."""
Scale = tuple[float, float]


def panels_of(estimates: Sequence[Estimate]) -> list[list[Estimate]]:
    """Estimates on one axis: those of one metric, arms and differences apart."""
    by = sorted(range(len(estimates)), key=lambda n: (estimates[n].metric, estimates[n].minus is not None, n))
    keys = groupby((estimates[n] for n in by), key=lambda one: (one.metric, one.minus is not None))
    return [list(group) for _, group in keys]


def scale_of(panel: Sequence[Estimate]) -> Scale:
    """From the lowest to the highest end; of differences, with 0."""
    ends = [end for one in panel for end in (one.interval.low, one.interval.high, *one.by_seed)]
    ends += [0.0] * (panel[0].minus is not None)
    return min(ends), max(ends)


def bar(one: Estimate, scale: Scale) -> str:
    """As in `  ├──●──┤   `; of a difference `┆` is 0."""
    low, high = scale
    span = (high - low) or 1.0

    def place(value: float) -> int:
        return round((value - low) / span * (WIDTH - 1))

    mean, start, stop = (place(value) for value in one.interval)
    cells = [" "] * WIDTH
    if one.minus is not None:
        cells[place(0.0)] = "┆"
    for at in range(start, stop + 1):
        cells[at] = "┼" if cells[at] == "┆" else "─"
    if start < stop:
        cells[start], cells[stop] = "├", "┤"
    cells[mean] = "●"
    return "".join(cells)


def interval_figure(estimates: Sequence[Estimate]) -> Figure:
    """One panel per metric and kind; a row per estimate: the mean, its interval, and a small dot per seed."""
    panels = [panel[:MOST_DRAWN] for panel in panels_of(estimates)]
    rows = [len(panel) for panel in panels]
    longest = max(len(one.of) for panel in panels for one in panel)
    height = sum(0.9 + 0.3 * count for count in rows)
    figure = Figure(figsize=(10.0, height))
    left = min(0.5, 0.03 + 0.0085 * longest)
    top = height
    for panel in panels:
        size = 0.3 * len(panel)
        top -= 0.4
        axis = figure.add_axes((left, (top - size) / height, 0.98 - left, size / height))
        _draw(axis, panel)
        top -= size + 0.5
    return figure


def _draw(axis: Axes, panel: Sequence[Estimate]) -> None:
    differences = panel[0].minus is not None
    for row, one in enumerate(panel):
        mean, low, high = one.interval
        clear = not differences or low > 0 or high < 0
        colour = "#808080" if not clear else COLOURS[0 if differences else row % len(COLOURS)]
        axis.plot([low, high], [row, row], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.6)
        axis.plot(list(one.by_seed), [row] * len(one.by_seed), "|", color=colour, markersize=9)
        axis.plot([mean], [row], "o", color=colour, markersize=6)
    if differences:
        axis.axvline(0.0, color="#808080", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(panel)), [plain_label(one.of) for one in panel], fontsize=8)
    axis.set_ylim(len(panel) - 0.5, -0.5)
    axis.tick_params(axis="x", labelsize=8)
    kind = "difference" if differences else "mean"
    axis.set_title(f"held-out {panel[0].label}: {kind} and 95 % interval", fontsize=10, loc="left")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", alpha=0.2)
