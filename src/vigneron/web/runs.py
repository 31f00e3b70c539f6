"""The runs that pages show: those in the given folders, named by their path below the folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from vigneron.errors import UserError, visible
from vigneron.files import default_runs_folder
from vigneron.recipe import config_text
from vigneron.run_store.folder import LOCK, RunFolder, outside_link, special_file
from vigneron.run_store.notices import NOTICES, Notice, kept_notices
from vigneron.run_store.status import STATUS, RunStatus, run_folders, status_of
from vigneron.values import differing_keys, flatten
from vigneron.yaml_text import quick_yaml


class Runs:
    """Looked up for every request, so that new and deleted runs are noticed.

    A request names a run by a key of `folders()`, never by a path; the keys have no invisible characters.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [place.expanduser() for place in places]
        self._statuses: dict[Path, tuple[Any, RunStatus]] = {}
        self._notices: dict[Path, tuple[Any, list[Notice]]] = {}
        self._lock = Lock()
        for place in self._places:
            if not place.is_dir():
                run_folders(place)  # raises

    def folders(self) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for place in self._places:
            if (place / "config.yaml").is_file():
                _add(folders, visible(place.resolve().name), place)
                continue
            try:
                for path in run_folders(place):
                    _add(folders, visible(path.relative_to(place).as_posix()), path)
            except (UserError, OSError):  # deleted meanwhile
                continue
        return {name: path for name, path in folders.items() if _is_self_contained(path)}

    def folder(self, name: str) -> Path:
        try:
            return self.folders()[name]
        except KeyError:
            raise NoSuchRun(name) from None

    def status(self, path: Path) -> RunStatus:
        """Cached until a file of the run, or its lock, changes."""
        mark = (*(_changed(path / name) for name in ("config.yaml", STATUS, "metrics.jsonl", LOCK)),)
        alive = RunFolder(path).is_locked()
        with self._lock:
            cached = self._statuses.get(path)
        if cached is not None and cached[0] == (mark, alive):
            return cached[1]
        status = status_of(path)
        with self._lock:
            self._statuses[path] = ((mark, alive), status)
        return status

    def notices(self, path: Path) -> list[Notice]:
        """Cached until the file changes."""
        mark = _changed(path / NOTICES)
        with self._lock:
            cached = self._notices.get(path)
        if cached is not None and cached[0] == mark:
            return cached[1]
        notices = kept_notices(path)
        with self._lock:
            self._notices[path] = (mark, notices)
        return notices


def refuse_no_runs(places: Sequence[Path]) -> None:
    """Refuse a given folder without runs; the default folder may be empty until the first run starts."""
    for place in places:
        if place != default_runs_folder() and not Runs([place]).folders():
            raise UserError(f"no run in '{place}': give a run's folder or a folder of runs")


class NoSuchRun(UserError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no run {name!r}")


def _is_self_contained(path: Path) -> bool:
    try:
        return outside_link(path) is None and special_file(path) is None
    except OSError:  # deleted meanwhile
        return False


def _add(folders: dict[str, Path], name: str, path: Path) -> None:
    """Add a run; a number is appended to a name that exists in another folder."""
    number, key = 1, name
    while key in folders:
        number += 1
        key = f"{name} ({number})"
    folders[key] = path


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        at = path.stat()
    except OSError:
        return None
    return at.st_size, at.st_mtime_ns


def differences(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: a key, and its value in each run as text."""
    flat = [{key: _text(value) for key, value in flatten(config).items()} for config in configs.values()]
    return [{"key": key, "values": values} for key, values in differing_keys(flat).items()]


def _text(value: Any) -> str:
    """As YAML writes it: `true`, `null`."""
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**9)).removesuffix("\n...\n").strip()


def written_config(folder: Path) -> str:
    return config_text(folder / "config.yaml", f"{folder.name}/config.yaml")


def read_config(folder: Path) -> Mapping[str, Any]:
    config = quick_yaml(written_config(folder), f"{folder.name}/config.yaml")
    if not isinstance(config, dict):
        raise UserError(f"{folder.name}: config.yaml is not a mapping")
    return config
