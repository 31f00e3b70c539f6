"""A run's notes and warnings: `notices.jsonl` in its folder, one per line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vigneron.redaction import redacted
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import last_records

NOTICES = "notices.jsonl"

NoticeKind = Literal["note", "warning"]
"""A note explains how the run is set up, a warning what goes wrong."""


@dataclass(frozen=True)
class Notice:
    step: int
    text: str
    kind: NoticeKind = "note"
    about: str = ""
    """The subject: a run gives one notice per subject, whatever the numbers in the text."""

    @property
    def key(self) -> str:
        return self.about or self.text


def keep_notice(folder: RunFolder, notice: Notice) -> None:
    folder.append(NOTICES, {**vars(notice), "text": redacted(notice.text)})


def kept_notices(path: Path) -> list[Notice]:
    """In order. Damaged lines are left out."""
    notices = []
    for record in last_records(path / NOTICES):
        text = record.get("text")
        if isinstance(text, str):
            kind: NoticeKind = "warning" if record.get("kind") == "warning" else "note"
            notices.append(Notice(record["step"], text, kind, str(record.get("about") or "")))
    return notices
