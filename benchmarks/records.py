"""Results as they come, in a file of JSON lines: a run that was cut anywhere is continued by the next."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["parity", "ceilings", "measurement", "failure", "point", "start", "answers"]
Value = dict[str, Any]


class Records:
    """Values by kind, work and name. A later record replaces an earlier one; without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._values: dict[tuple[str, str, str], Value] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
            try:
                kept = json.loads(line)
                self._keep(kept["kind"], kept["work"], kept["name"], kept["value"])
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut

    def add(self, kind: Kind, work: str, name: str, value: Value) -> None:
        self._keep(kind, work, name, value)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cut = self._path.is_file() and not self._path.read_bytes().endswith(b"\n") and self._path.stat().st_size
        with self._path.open("a") as file:
            line = json.dumps({"kind": kind, "work": work, "name": name, "value": value})
            file.write(("\n" if cut else "") + line + "\n")

    def _keep(self, kind: str, work: str, name: str, value: Value) -> None:
        if kind == "measurement":  # it succeeded in the end
            self._values.pop(("failure", work, name), None)
        self._values[kind, work, name] = value

    def get(self, kind: Kind, work: str, name: str = "") -> Value | None:
        return self._values.get((kind, work, name))

    def of(self, kind: Kind, work: str) -> Iterator[tuple[str, Value]]:
        """Names and values, in the order of their first record."""
        yield from ((name, value) for (of, at, name), value in self._values.items() if (of, at) == (kind, work))
