"""Speed and memory of a step, from timings.jsonl: unlike metrics, they need not be the same after a resume."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vigneron.files import lines_of
from vigneron.run_store.folder import record_of
from vigneron.values import is_number

TIMINGS = "timings.jsonl"
GPU_PERCENT = "speed/gpu_percent"


def speed_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Under the names of the table of metrics."""
    seconds, tokens = record.get("seconds"), record.get("tokens")
    measured = {n: v for n, v in record.items() if n == GPU_PERCENT or n.startswith("memory/")}
    speed = {name: float(value) for name, value in measured.items() if is_number(value)}
    if is_number(seconds) and seconds is not None and seconds > 0:
        speed["speed/step_seconds"] = float(seconds)
        if is_number(tokens) and tokens is not None:
            speed["speed/tokens_per_second"] = tokens / seconds
    return speed


def speeds(folder: Path) -> dict[int, dict[str, float]]:
    """By step. Damaged lines are left out."""
    found = {}
    if (folder / TIMINGS).is_file():
        for line in lines_of(folder / TIMINGS):
            try:
                record = record_of(line)
            except ValueError:
                continue
            found[record["step"]] = speed_of(record)
    return found


def with_speeds(records: Iterable[Mapping[str, Any]], folder: Path) -> Iterator[Mapping[str, Any]]:
    """Records of metrics.jsonl, with what timings.jsonl has of their steps."""
    of_steps = speeds(folder)
    for record in records:
        yield {**record, **of_steps.get(record["step"], {})}
