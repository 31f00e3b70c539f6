"""Held-out rows of `turns_study`: those of Nim, and what the study has to know of rows.

The task has 15 starts of Nim for tuning, too few to choose a rate by, and they are among the positions that it
evaluates. Here a third of all positions is for tuning, and the others are scored. One move is played in each, which is
what is scored. Positions that differ only in the order of their piles are in one part. Training begins where the
task's does.

Rows of one unit (a question of a debate, a range, a set of piles) are alike, so a unit counts once: its score is the
mean of its rows, and intervals are over units.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.study_store import mean, write_once
from vigneron.data.nim import Nim, nim_value
from vigneron.data.prompts import Row
from vigneron.data.tasks import load_task
from vigneron.rewards.nim_move import first_turn, keeps_value
from vigneron.rollout.conversations import CONVERSATION
from vigneron.run_store.samples import Sample

PARTS = ("train", "tuning", "held_out")
TUNING_EVERY = 3

Facts = Mapping[str, Any]
"""Of a held-out row: its `unit`; of a position of Nim also `can_be_won`, `is_start` (training begins games there) and
`at_random`, the share of its legal moves that keep the value of the game."""
NIM_FACTS = ("can_be_won", "is_start", "at_random")


def nim_rows() -> dict[str, list[Row]]:
    """The rows of each part."""
    task = load_task("nim-positions")
    rows: dict[str, list[Row]] = {"train": [dict(row) for row in task.rows("train")], "tuning": [], "held_out": []}
    starts = {tuple(row["piles"]) for row in rows["train"]}
    positions = task.rows("held_out")
    sets = sorted({tuple(sorted(row["piles"])) for row in positions})
    tuning = set(sets[::TUNING_EVERY])
    for row in positions:
        piles = tuple(row["piles"])
        part = "tuning" if tuple(sorted(piles)) in tuning else "held_out"
        facts = (nim_value(piles) == 1, piles in starts, at_random(piles))
        unit = " ".join(map(str, sorted(piles)))
        rows[part].append({**row, "most_moves": 1, "pile_set": unit, **dict(zip(NIM_FACTS, facts, strict=True))})
    return rows


def at_random(piles: tuple[int, ...]) -> float:
    """The share of legal moves that keep the value of the game."""
    nim = Nim()
    return mean([float(keeps_value(nim.write_move(move), piles)) for move in nim.moves(piles)])


def first_moves_are_legal(samples: Sequence[Sample], rows: Sequence[Row]) -> list[float]:
    """Of each row 1 if its first move is legal, else 0."""
    nim, texts = Nim(), [first_turn(s.extras[CONVERSATION]) for s in samples if s.extras["role"] == "first"]
    return [float(nim.read_move(text) in nim.moves(tuple(row["piles"]))) for text, row in zip(texts, rows, strict=True)]


def write_nim_rows(runs: Path) -> None:
    for part, rows in nim_rows().items():
        write_once(_file(runs, part), "".join(json.dumps(row) + "\n" for row in rows))


def nim_data(runs: Path, held_out: str) -> str:
    """The change of a recipe that trains on the rows and evaluates on those of `held_out`."""
    files = {"train": _file(runs, "train"), "held_out": _file(runs, held_out)}
    return f"data={json.dumps({**{key: str(file) for key, file in files.items()}, 'checker': 'nim_optimal'})}"


def _file(runs: Path, part: str) -> Path:
    return (runs / ".rows" / f"nim-{part}.jsonl").resolve()


# ---------------------------------------------------------------------------------------------- units


def facts_of(row: Row, columns: Sequence[str]) -> Facts:
    """The columns name its unit."""
    unit = " ".join(str(row[column]) for column in columns)
    return {"unit": unit, **{name: row[name] for name in NIM_FACTS if name in row}}


def is_scored(facts: Facts) -> bool:
    """At Nim every legal move keeps the value of a lost position, and starts are trained on."""
    return facts.get("can_be_won", True) and not facts.get("is_start", False)


def unit_means(
    values: Sequence[float], rows: Sequence[Facts], wanted: Callable[[Facts], bool] = is_scored
) -> list[float]:
    """The mean of each unit's wanted rows."""
    units: dict[str, list[float]] = {}
    for value, facts in zip(values, rows, strict=True):
        if wanted(facts):
            units.setdefault(facts["unit"], []).append(value)
    return [mean(own) for own in units.values()]


def nim_at_random() -> float:
    """What legal moves at random score in the positions that the rule counts."""
    rows = [facts_of(row, ["pile_set"]) for row in nim_rows()["held_out"]]
    return mean(unit_means([facts["at_random"] for facts in rows], rows))
