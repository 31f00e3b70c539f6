"""A file of what is drawn part by part: one line for each part, written when the part is done.

A process that was killed in between continues behind the last whole line, with the same draws. The first line says what
the parts were drawn with; if that has changed, they are drawn again.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from vigneron.files import parse_json, write_atomically

Part = TypeVar("Part")


def fingerprint(drawn_with: Any) -> str:
    return hashlib.sha256(json.dumps(drawn_with, sort_keys=True).encode()).hexdigest()


def read_parts(file: Path | None, drawn_with: str, parse: Callable[[Any], Part]) -> list[Part]:
    """The parts in the file up to the first damaged line; none if they were drawn with something else."""
    if file is None or not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]  # without a last line that a kill cut
    parts: list[Part] = []
    with suppress(ValueError, TypeError, KeyError, IndexError):
        if parse_json(lines[0])["drawn_with"] != drawn_with:
            return []
        for line in lines[1:]:
            parts.append(parse(parse_json(line)))
    return parts


def write_parts(file: Path, drawn_with: str, parts: Iterable[Any]) -> None:
    """The file with these parts alone; more are appended as JSON lines."""
    lines = [{"drawn_with": drawn_with}, *parts]
    write_atomically(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
