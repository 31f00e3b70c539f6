"""What is missing or damaged in a run's folder, besides its checkpoints: logs and samples."""

from pathlib import Path

from vigneron.files import open_regular, parse_json
from vigneron.run_store.folder import LOGS

SHOWN = 3


def damage_of(run: Path) -> list[str]:
    """One line for each file of which something is lost. An unfinished last line is none: a kill leaves one."""
    found = [line for name in LOGS if (line := _damaged_lines(run / name)) is not None]
    if (run / LOGS[0]).is_file() and not (run / "samples.sqlite").is_file():
        found.append("samples.sqlite is missing: the samples of earlier steps are lost")
    return found


def _damaged_lines(path: Path) -> str | None:
    numbers = []
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n") and not _is_record(line):
                    numbers.append(number)
    except OSError:
        return None
    if not numbers:
        return None
    shown = ", ".join(map(str, numbers[:SHOWN])) + (f" and {len(numbers) - SHOWN} more" if numbers[SHOWN:] else "")
    return f"{path.name}: damaged and left out: line {shown}"


def _is_record(line: bytes) -> bool:
    try:
        record = parse_json(line)
    except ValueError:
        return False
    return isinstance(record, dict) and type(record.get("step")) is int
