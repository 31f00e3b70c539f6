"""A run's metrics, without reading all of a long metrics.jsonl."""

import os
from pathlib import Path
from typing import Any

from vigneron.files import LONGEST_LINE, open_regular, parse_json
from vigneron.run_store.status import last_records

READ_WHOLE = 2**22
"""A smaller file is read whole."""
LINES_READ = 400
"""Of a larger file, at evenly spread offsets."""
HEAD_BYTES = 2**16

Record = dict[str, Any]


def records_of(run: Path) -> list[Record]:
    """In the order of their steps: all records, or of a long run the first ones, some in between, and the last ones."""
    path = run / "metrics.jsonl"
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= READ_WHOLE:
                lines = file.read().splitlines(keepends=True)
            else:
                lines = file.read(HEAD_BYTES).splitlines(keepends=True)
                for part in range(1, LINES_READ):
                    file.seek(size * part // LINES_READ)
                    file.readline(LONGEST_LINE)  # the rest of the line at that offset
                    lines.append(file.readline(LONGEST_LINE))
    except OSError:
        return []
    records = {record["step"]: record for line in lines if (record := _record(line)) is not None}
    records |= {record["step"]: record for record in last_records(path)}
    return [records[step] for step in sorted(records)]


def _record(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
