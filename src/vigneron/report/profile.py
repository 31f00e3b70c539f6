"""`vigneron train … --profile`: where a step's time went."""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table

from vigneron.timing import WHOLE

Laps = Sequence[Mapping[str, float]]


def profile_rows(laps: Laps) -> list[tuple[str, float, float]]:
    """(phase, median seconds, share of a step), in the order they came; what no phase covers is `other`.

    The first steps load, compile and capture: with five or more, two of them are left out. A phase that is not in
    every step (an evaluation, a checkpoint) counts with its mean over all of them.
    """
    steady = laps[2:] if len(laps) >= 5 else laps
    names = dict.fromkeys(name for lap in steady for name in lap if name != WHOLE)
    seconds = {name: _typical([lap.get(name, 0.0) for lap in steady]) for name in names}
    whole = sum(lap[WHOLE] for lap in steady) / len(steady)
    other = max(0.0, whole - sum(value for name, value in seconds.items() if "/" not in name))
    rows = [*seconds.items(), ("other", other), (WHOLE, whole)]
    return [(name, value, value / whole) for name, value in sorted(rows, key=_after_its_parent(list(names)))]


def _typical(values: Sequence[float]) -> float:
    return median(values) if all(values) else sum(values) / len(values)


def _after_its_parent(names: Sequence[str]):  # type: ignore[no-untyped-def]
    """Inner phases end before outer ones: list them under these."""
    parents = [name for name in names if "/" not in name]

    def key(row: tuple[str, float]) -> tuple[int, int]:
        parent = row[0].split("/")[0]
        if parent not in parents:
            return (len(parents) + (row[0] == WHOLE), 0)
        return (parents.index(parent), 0 if "/" not in row[0] else 1 + names.index(row[0]))

    return key


def profile_table(laps: Laps) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", title=f"a step's time ({len(laps)} steps)")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for name, seconds, share in profile_rows(laps):
        depth = name.count("/")
        table.add_row("  " * depth + name.rsplit("/")[-1], f"{seconds:.4f}", f"{share:.0%}")
    return table
