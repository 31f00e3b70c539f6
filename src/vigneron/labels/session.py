"""One labeller's session: which item is next, and how a label is recorded. Thread-safe."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from vigneron.errors import UserError, visible
from vigneron.labels.agreement import agreement, reward_agreement
from vigneron.labels.export import OutFile
from vigneron.labels.items import SKIP, TIE, Choice, Item, shuffled
from vigneron.labels.journal import Journal, label_entry, undo_entry
from vigneron.text import plain


class UnknownItem(LookupError):
    pass


class ConflictingLabel(ValueError):
    """The item has another label by this labeller, which must be undone first."""


@dataclass
class Session:
    """Items of the journal come first, so that a second person labels the same ones."""

    journal: Journal
    out: OutFile
    labeller: str
    seed: int = 0
    limit: int | None = None
    now: Callable[[], float] = time.time
    note: str | None = None
    """Status or error shown on the page."""
    more: bool = False
    """Whether more items are being sampled."""
    _queue: dict[str, Item] = field(default_factory=dict)
    _again: list[str] = field(default_factory=list)
    _revealed: dict[str, Any] | None = None
    _lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self._queue.update(self.journal.labels.items)
        self.out.refresh(self.journal.labels)
        if self.journal.labels.items:
            self.out.write()

    def offer(self, items: Sequence[Item], *, keep: bool = False) -> None:
        """Add items, up to the limit. `keep` writes them to the journal now, because they cannot be sampled again."""
        with self._lock:
            for item in items:
                if item.id in self._queue or (self.limit is not None and len(self._queue) >= self.limit):
                    continue
                if keep:
                    self.journal.append([item.record()])
                self._queue[item.id] = item

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self._queue) >= self.limit

    def offered(self) -> list[Item]:
        with self._lock:
            return list(self._queue.values())

    def judge(self, item_id: str, given: Any) -> None:
        """Record a label. The same label twice is recorded once."""
        with self._lock:
            item = self._queue.get(item_id)
            if item is None:
                raise UnknownItem(item_id)
            order = self._order(item)
            choice = item.choice_of(given, order)
            before = self._choice(item_id)
            if before is not None and before != choice:
                raise ConflictingLabel(item_id)
            if before is None:
                known = item_id in self.journal.labels.items
                entries = [] if known else [item.record()]
                self.journal.append([*entries, label_entry(item_id, self.labeller, order, choice, self.now)])
                self._again = [each for each in self._again if each != item_id]
            self._revealed = item.revealed(choice)
            self._write(item_id)

    def undo(self) -> None:
        """Undo the labeller's last label; repeated calls undo earlier ones, also of earlier sessions."""
        with self._lock:
            item_id = self.journal.labels.last(self.labeller)
            if item_id is None:
                return
            self.journal.append([undo_entry(item_id, self.labeller, self.now)])
            if self._choice(item_id) is None:
                self._again.append(item_id)
            self._revealed = None
            self._write(item_id)

    def state(self) -> dict[str, Any]:
        """What the page shows: the current item, the next one, and the progress."""
        with self._lock:
            labels = self.journal.labels
            waiting = self._waiting(2)
            choices = [choice for each in self._queue if (choice := self._choice(each)) is not None]
            shared = agreement(labels) if len(labels.labellers()) > 1 and self._comparing() else None
            return {
                "item": self._shown(waiting[0]) if waiting else None,
                "next": self._shown(waiting[1]) if len(waiting) > 1 else None,
                "done": len(choices),
                "of": len(self._queue),
                "more": self.more,
                "ties": choices.count(TIE),
                "skips": choices.count(SKIP),
                "rows": self.out.rows,
                "undo": labels.last(self.labeller) is not None,
                "agreement": None if shared is None else visible(shared.line()),
                "with_reward": None if waiting else self._reward_agreement(),
                "note": None if self.note is None else plain(self.note),
                "last": self._revealed,
            }

    def _comparing(self) -> bool:
        return all(item.kind != "scores" for item in self._queue.values())

    def _reward_agreement(self) -> str | None:
        """At the end, since it could change how the rest is labelled."""
        line = reward_agreement(self.journal.labels, self.labeller)
        return None if line is None else visible(line)

    def _waiting(self, count: int) -> list[Item]:
        again = [self._queue[each] for each in reversed(self._again) if each in self._queue]
        waiting = [*again[:count]]
        for each, item in self._queue.items():
            if len(waiting) >= count:
                break
            if each not in self._again and self._choice(each) is None:
                waiting.append(item)
        return waiting

    def _choice(self, item_id: str) -> Choice | None:
        return self.journal.labels.choice(item_id, self.labeller)

    def _order(self, item: Item) -> list[int]:
        return shuffled(item.places, self.seed, item.id, self.labeller)

    def _shown(self, item: Item) -> dict[str, Any]:
        return item.shown(self._order(item))

    def _write(self, item_id: str) -> None:
        """Write the output file. If that fails, the journal still has the label and the next one writes it."""
        self.out.refresh(self.journal.labels, item_id)
        try:
            self.out.write()
            self.note = None if self.note is not None and self.note.startswith("cannot write") else self.note
        except UserError as error:
            self.note = str(error)
