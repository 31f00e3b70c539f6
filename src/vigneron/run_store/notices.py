"""What a run said of itself: `notices.jsonl` in its folder, one line each, so that whoever looks later reads it too."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vigneron.redaction import redacted
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import last_records

NOTICES = "notices.jsonl"

NoticeKind = Literal["note", "warning"]
"""A note explains how the run is set up, a warning what is going wrong in it."""


@dataclass(frozen=True)
class Notice:
    step: int
    text: str
    kind: NoticeKind = "note"
    about: str = ""
    """What it is about: of one thing a run speaks once, whatever the figures in the text are by then."""

    @property
    def key(self) -> str:
        return self.about or self.text


def keep_notice(folder: RunFolder, notice: Notice) -> None:
    folder.append(NOTICES, {**vars(notice), "text": redacted(notice.text)})


def kept_notices(path: Path) -> list[Notice]:
    """As they were said. A damaged line is left out."""
    found = []
    for record in last_records(path / NOTICES):
        text = record.get("text")
        if isinstance(text, str):
            kind: NoticeKind = "warning" if record.get("kind") == "warning" else "note"
            found.append(Notice(record["step"], text, kind, str(record.get("about") or "")))
    return found


def warnings_in(notices: Sequence[Notice]) -> list[Notice]:
    return [notice for notice in notices if notice.kind == "warning"]
