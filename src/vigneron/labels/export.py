"""The output file of labelling: the majority's choices, in a format that methods train on.

It is a function of the journal alone. Ties and skips give no row, nor do items without a majority.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vigneron.files import write_for_user
from vigneron.labels.items import SKIP, Choice, Comparison, Item
from vigneron.labels.journal import Labels
from vigneron.labels.judged_answer import JudgedAnswer
from vigneron.labels.solution import Solution
from vigneron.text import to_cell

SCORE_COLUMNS = ("prompt", "completion", "category", "item", "score", "labeller")


def winner(choices: Mapping[str, Choice]) -> Choice | None:
    """The choice with the most votes; None if two are tied for first place. A skip is not a vote."""
    counts = Counter(choice for choice in choices.values() if choice != SKIP).most_common(2)
    if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


def rows_of(item: Item, choices: Mapping[str, Choice]) -> list[dict[str, Any]]:
    if isinstance(item, JudgedAnswer):
        texts = {"prompt": item.prompt, "completion": item.completion, "category": item.category, "item": item.item}
        scores = sorted((by, choice) for by, choice in choices.items() if choice != SKIP)
        return [{**texts, "score": score, "labeller": by} for by, score in scores]
    if isinstance(item, Solution):
        labels = item.labels(choices)
        known = any(label is not None for label in labels)
        return [{"prompt": item.prompt, "completion": item.completion, "labels": labels}] if known else []
    assert isinstance(item, Comparison)
    chosen = winner(choices)
    if not isinstance(chosen, int):
        return []
    others = [item.trained(place) for place in range(item.places) if place != chosen]
    if item.kind == "pairs":
        return [item.row(chosen=item.trained(chosen), rejected=others[0])]
    return [item.row(completion=item.trained(chosen), others=others)]


class OutFile:
    """Rewritten as a whole after each label; only rows of newly labelled items are computed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, list[str]] = {}
        self._line: Callable[[dict[str, Any]], str] = _csv_line if path.suffix == ".csv" else _json_line

    @property
    def rows(self) -> int:
        return sum(map(len, self._lines.values()))

    def refresh(self, labels: Labels, *items: str) -> None:
        for item in items or labels.items:
            known = labels.items.get(item)
            rows = [] if known is None else rows_of(known, labels.choices(item))
            self._lines[item] = [self._line(row) for row in rows]

    def text(self) -> str:
        head = _csv_cells(SCORE_COLUMNS) if self.path.suffix == ".csv" else ""
        return head + "".join(line for item in sorted(self._lines) for line in self._lines[item])

    def write(self) -> None:
        write_for_user(self.path, self.text())


def _json_line(row: dict[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False)
    return (text if _is_utf8(text) else json.dumps(row)) + "\n"


def _is_utf8(text: str) -> bool:
    """False for unpaired surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _csv_line(row: dict[str, Any]) -> str:
    return _csv_cells([to_cell(row[name]) for name in SCORE_COLUMNS])


def _csv_cells(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
