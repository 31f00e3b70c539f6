"""The journal: an append-only JSONL file of items, labels and undos, from which the output file is made.

It contains the items too, so that it is complete by itself: journals of several people can be joined with `cat`.
Truncated and foreign lines are ignored.
"""

import fcntl
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.files import closed_in_forks
from vigneron.labels.items import Choice, Comparison, Item, Kind
from vigneron.labels.judged_answer import JudgedAnswer
from vigneron.labels.solution import Solution


def journal_of(out: Path) -> Path:
    return out.with_name(f"{out.stem}.labels.jsonl")


def item_of(record: dict[str, Any]) -> Item | None:
    if record.get("kind") == "steps":
        return Solution.of_record(record)
    return JudgedAnswer.of_record(record) if record.get("kind") == "scores" else Comparison.of_record(record)


class Labels:
    """The current labels of a journal. An undo restores the labeller's earlier label of the item, if there is one."""

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.items: dict[str, Item] = {}
        self._choices: defaultdict[str, dict[str, list[Choice]]] = defaultdict(dict)
        self._order: defaultdict[str, list[str]] = defaultdict(list)
        for entry in entries:
            self.add(entry)

    def add(self, entry: Mapping[str, Any]) -> None:
        by, labelled, undone = (entry.get(name) for name in ("by", "label", "undo"))
        if isinstance(entry.get("item"), str):
            item = item_of(dict(entry))
            if item is not None:
                self.items.setdefault(item.id, item)
        elif isinstance(by, str) and isinstance(labelled, str) and isinstance(entry.get("choice"), int | float | str):
            self._choices[labelled].setdefault(by, []).append(entry["choice"])
            self._order[by].append(labelled)
        elif isinstance(by, str) and isinstance(undone, str) and self._choices[undone].get(by):
            self._choices[undone][by].pop()
            last = len(self._order[by]) - 1 - self._order[by][::-1].index(undone)
            del self._order[by][last]

    def choice(self, item: str, by: str) -> Choice | None:
        """None if the item is not labelled, or the choice is not valid for it."""
        return self.choices(item).get(by)

    def choices(self, item: str) -> dict[str, Choice]:
        """By labeller."""
        known = self.items.get(item)
        if known is None:
            return {}
        stacks = self._choices.get(item, {})
        return {by: stack[-1] for by, stack in stacks.items() if stack and known.allows(stack[-1])}

    def last(self, by: str) -> str | None:
        return next((item for item in reversed(self._order[by]) if item in self.items), None)

    def labellers(self) -> list[str]:
        return sorted(by for by, order in self._order.items() if order)


class Journal:
    """Locked by one process at a time; the operating system releases the lock when the process ends."""

    def __init__(self, out: Path, kind: Kind) -> None:
        self.path = journal_of(out)
        if out.exists() and not self.path.exists():
            raise UserError(f"'{out}' exists without its journal '{self.path.name}': choose another --out")
        try:
            self._file = self.path.open("ab", buffering=0)
            closed_in_forks(self._file)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another process is writing labels to '{out}': stop it, or choose another --out"
            ) from error
        except OSError as error:
            raise UserError(f"cannot write '{self.path}': {error.strerror}") from error
        self.labels = Labels(read_entries(self.path, kind))
        self._torn = _is_torn(self.path)

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        """Synced to disk before it returns. After an OSError none of the entries count."""
        left = memoryview((("\n" if self._torn else "") + "".join(json.dumps(e) + "\n" for e in entries)).encode())
        self._torn = True
        while left:
            left = left[self._file.write(left) :]
        os.fsync(self._file.fileno())
        self._torn = False
        for entry in entries:
            self.labels.add(entry)

    def close(self) -> None:
        self._file.close()


def label_entry(item: str, by: str, order: Sequence[int], choice: Choice, now: Callable[[], float]) -> dict[str, Any]:
    return {"label": item, "by": by, "order": list(order), "choice": choice, "time": round(now(), 3)}


def undo_entry(item: str, by: str, now: Callable[[], float] = time.time) -> dict[str, Any]:
    return {"undo": item, "by": by, "time": round(now(), 3)}


def read_entries(path: Path, kind: Kind) -> list[dict[str, Any]]:
    """The valid lines. A journal of another kind of labels is an error."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    entries = [entry for line in lines if (entry := _entry(line)) is not None]
    other = next((e["kind"] for e in entries if "item" in e and e.get("kind") not in (None, kind)), None)
    if other is not None:
        raise UserError(f"'{path}' contains labels of another kind ({other!r:.20}, not '{kind}'): choose another --out")
    return entries


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_torn(path: Path) -> bool:
    """Whether the last line has no newline, so that the next entry must begin with one."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read(1) not in (b"", b"\n")
