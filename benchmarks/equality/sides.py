"""The two versions of the code that `benchmarks.same_runs` compares, and how their processes are started."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_S = 1800
LAST_LINES = 15


@dataclass(frozen=True, eq=False)
class Side:
    """One version of the code, and the folder that its runs are written in."""

    name: str
    checkout: Path
    place: Path
    keys: Mapping[str, str]
    """Renamed keys of recipes."""

    @property
    def speed_environment(self) -> dict[str, str]:
        """The version's code, and what recipes name."""
        path = os.pathsep.join([str(self.checkout / "src"), str(self.place.parent / "shared")])
        return {**os.environ, "PYTHONPATH": path}

    @property
    def environment(self) -> dict[str, str]:
        """The same with one thread, a fixed order of sets, and a cache of its own."""
        fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "VIGNERON_CACHE": str(self.place / "cache")}
        return {**self.speed_environment, **fixed}

    def with_new_keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return with_new_keys(config, self.keys)

    def started(self, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (self.place / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.place,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def last_lines(self) -> str:
        lines = (self.place / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])


def ended(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(LONGEST_S)
    finally:
        process.kill()


def with_new_keys(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A recipe with some of its dotted keys renamed."""
    given: dict[str, Any] = json.loads(json.dumps(config))
    for old, new in names.items():
        *path, last = old.split(".")
        section: Any = given
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and last in section:
            _set(given, new.split("."), section.pop(last))
    return given


def _set(section: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        section = section.setdefault(part, {})
    section[path[-1]] = value


@contextmanager
def checkout(given: str, place: Path) -> Iterator[Path]:
    """A folder as it is, or a commit of this repository in a temporary worktree."""
    if Path(given).is_dir():
        yield Path(given).resolve()
        return
    git = ["git", "-C", str(Path(__file__).parent)]
    added = subprocess.run([*git, "worktree", "add", "--detach", str(place), given], capture_output=True, text=True)
    if added.returncode:
        raise SystemExit(f"'{given}' is neither a folder nor a commit: {added.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(place)], check=False)


@contextmanager
def both_sides(old: str, new: str, keys: Mapping[str, str], keep: Path | None) -> Iterator[tuple[Side, Side]]:
    """OLD and NEW, with folders for their runs: temporary ones, or in `keep`. `keys` are NEW's renamed ones."""
    with tempfile.TemporaryDirectory(prefix="same-runs-") as temporary:
        place = Path(temporary) if keep is None else keep
        with checkout(old, place / "old-code") as one, checkout(new, place / "new-code") as other:
            both = Side("OLD", one, place / "old", {}), Side("NEW", other, place / "new", keys)
            for side in both:
                if not (side.checkout / "src" / "vigneron").is_dir():
                    raise SystemExit(f"'{side.checkout}' has no src/vigneron")
                (side.place / "recipes").mkdir(parents=True)
            yield both
