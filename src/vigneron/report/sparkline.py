"""Numbers and sparklines as short text. No torch is imported."""

from collections.abc import Sequence

from vigneron.values import even_ranges

BARS = "▁▂▃▄▅▆▇█"


def short(value: float) -> str:
    """Three decimals; a smaller number in scientific notation."""
    return f"{value:.3f}" if value != value or value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars; NaN is a gap."""
    values = values[-width:]
    real = [v for v in values if v == v]
    if not real:
        return ""
    low, high = min(real), max(real)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if v == v else " " for v in values)


def whole_sparkline(values: Sequence[float], width: int) -> str:
    """All values as at most `width` bars, each the mean of its chunk."""
    if len(values) <= width:
        return sparkline(values, width)
    means = [sum(values[i] for i in chunk) / len(chunk) for chunk in even_ranges(len(values), width)]
    return sparkline(means, width)
