"""Levels of difficulty: the numbers of a column of the rows."""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from vigneron.config import LevelCurriculumConfig
from vigneron.data.prompts import Row
from vigneron.errors import UserError, did_you_mean


def level_of(row: Row, column: str) -> float:
    """A row's level; NaN if it has none, or if it is not a number. In CSV files numbers are text."""
    return as_level(row.get(column))


def as_level(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        level = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return level if math.isfinite(level) else math.nan


def level_name(level: float) -> str:
    """3 and not 3.0."""
    return f"{level:.15g}"


def rows_by_level(rows: Sequence[Row], options: LevelCurriculumConfig, where: str) -> dict[float, np.ndarray]:
    """The indices of the rows of each level, the lowest first.

    Raises for a row without a level, and for a level that no row has.
    """
    column = options.column
    by_level: dict[float, array[int]] = {}
    for number, row in enumerate(rows, start=1):
        level = level_of(row, column)
        if math.isnan(level):
            key = f"curriculum.column: {where}, row {number}"
            if row.get(column) is None:
                raise UserError(f"{key} has no '{column}'{did_you_mean(column, list(row))}")
            raise UserError(f"{key}: {column} is {row[column]!r}, not a number")
        by_level.setdefault(level, array("q")).append(number - 1)
    wanted = sorted(by_level) if options.levels is None else sorted(options.levels)
    unknown = [level_name(level) for level in wanted if level not in by_level]
    if unknown:
        known = ", ".join(level_name(level) for level in sorted(by_level))
        raise UserError(f"curriculum.levels: no row of {where} has the level {', '.join(unknown)}: it has {known}")
    return {level: np.frombuffer(by_level[level], dtype=np.int64) for level in wanted}


def split_by_level(rows: Sequence[Row], column: str) -> dict[float, list[int]]:
    """The indices of the rows of each level, the lowest first; rows without a level are left out."""
    levels = [level_of(row, column) for row in rows]
    return {one: [i for i, level in enumerate(levels) if level == one] for one in sorted({x for x in levels if x == x})}
