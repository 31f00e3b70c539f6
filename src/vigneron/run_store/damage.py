"""What is missing or damaged in a run's folder, besides its checkpoints: logs and samples."""

from pathlib import Path

from vigneron.files import lines_of
from vigneron.run_store.folder import LOGS, record_of

SHOWN = 3


def damage_of(run: Path) -> list[str]:
    """One line for each file of which something is missing. An unfinished last line is none: a kill leaves one."""
    found = [line for name in LOGS if (line := _damaged_lines(run / name)) is not None]
    if (run / LOGS[0]).is_file() and not (run / "samples.sqlite").is_file():
        found.append("samples.sqlite is missing")
    return found


def _damaged_lines(path: Path) -> str | None:
    try:
        numbers = [number for number, line in enumerate(lines_of(path), start=1) if not _is_record(line)]
    except OSError:
        return None
    if not numbers:
        return None
    shown = ", ".join(map(str, numbers[:SHOWN])) + (f" and {len(numbers) - SHOWN} more" if numbers[SHOWN:] else "")
    return f"{path.name}: damaged and left out: line {shown}"


def _is_record(line: bytes) -> bool:
    try:
        record_of(line)
    except ValueError:
        return False
    return True
