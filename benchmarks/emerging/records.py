"""What the experiments share: records that are kept as they come, and intervals over seeds."""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Student's t for a 95 % interval of n values.
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}

# Rates are chosen with this seed on the tuning part, and used with other seeds on the held-out part.
TUNING_SEED = 100

Record = dict[str, Any]


class Records:
    """One JSON line per run, written when the run is done; what is there is not run again."""

    def __init__(self, out: Path, name: str) -> None:
        self.file = out / f"{name}.jsonl"
        out.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[Record]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.is_file() else []

    def add_missing(self, keys: Iterable[tuple[str, int]], run: Callable[[str, int], Record]) -> None:
        """`run(arm, seed)` for every (arm, seed) that has no record yet."""
        done = {(record["arm"], record["seed"]) for record in self.read()}
        for arm, seed in keys:
            if (arm, seed) not in done:
                record = {"arm": arm, "seed": seed, **run(arm, seed)}
                with self.file.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(json.dumps({k: v for k, v in record.items() if not isinstance(v, list)}), flush=True)


def with_rates(arms: Iterable[str], tried: Mapping[str, Sequence[float]]) -> list[str]:
    """`arm@rate` for each learning rate that is tried for an arm; one that has a rate stays."""
    return [name for arm in arms for name in ([arm] if "@" in arm else [f"{arm}@{rate:g}" for rate in tried[arm]])]


def arm_and_rate(name: str, rates: Mapping[str, float]) -> tuple[str, float]:
    """The arm of `arm` or `arm@rate`, and its learning rate."""
    arm, _, rate = name.partition("@")
    return arm, float(rate) if rate else rates[arm]


def write_rows(file: Path, rows: Iterable[Record]) -> str:
    """The rows as JSON lines; returns the file's name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def interval(values: Sequence[float]) -> str:
    """Mean ± half of the 95 % interval of Student's t over seeds; NaN is left out, and "–" is no value."""
    values = [value for value in values if value == value]
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "–"
    half = T_95[min(len(values), max(T_95))] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


def difference(records: Sequence[Record], one: str, other: str, figure: str) -> str:
    """One arm minus another, paired by seed; an arm with one record (the base) stands for all seeds."""
    values = [
        {r["seed"]: r[figure] for r in records if r["arm"] == arm and r.get(figure) is not None} for arm in (one, other)
    ]
    if len(values[1]) == 1:
        values[1] = dict.fromkeys(values[0], *values[1].values())
    paired = [values[0][seed] - values[1][seed] for seed in values[0] if seed in values[1]]
    return f"{one} − {other}, {figure}: {interval(paired) if paired else 'not measured'}"


def table(records: Sequence[Record], columns: Sequence[str]) -> str:
    """A row for each arm: mean and interval over seeds."""
    arms = dict.fromkeys(record["arm"] for record in records)
    lines = [f"| {' | '.join(['arm', 'seeds', *columns])} |", f"|{'---|' * (len(columns) + 2)}"]
    for arm in arms:
        of = [record for record in records if record["arm"] == arm]
        cells = [interval(values) if (values := [r[c] for r in of if r.get(c) is not None]) else "" for c in columns]
        lines.append(f"| {' | '.join([arm, str(len(of)), *cells])} |")
    return "\n".join(lines)


def arguments(doc: str | None, given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=None, help="only these arms")
    parser.add_argument("--tune", action="store_true", help="each arm at every rate of TRIED, on the tuning part")
    parser.add_argument("--small", action="store_true", help="a tiny random model on a CPU, in seconds")
    options = parser.parse_args(given)
    options.part = "tuning" if options.tune else "held_out"
    options.seeds = [TUNING_SEED] if options.tune else options.seeds
    return options
