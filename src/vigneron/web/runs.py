"""The runs that pages show: those found in the given folders, each under a name that says where it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from vigneron.errors import UserError
from vigneron.recipe import config_text
from vigneron.run_store.folder import LOCK, RunFolder, default_runs_folder, leads_out
from vigneron.run_store.status import STATUS, RunStatus, run_folders, status_of
from vigneron.values import differing_keys, flatten
from vigneron.yaml_text import quick_yaml


class Runs:
    """Looked up anew for every page: a run that begins is there, one that was deleted is gone.

    A request names a run by a key of this list, and never by a path.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [place.expanduser() for place in places]
        self._statuses: dict[Path, tuple[Any, RunStatus]] = {}
        self._lock = Lock()
        for place in self._places:
            if not place.is_dir():
                run_folders(place)  # says so

    def folders(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for place in self._places:
            if (place / "config.yaml").is_file():
                _keep(found, place.resolve().name, place)
                continue
            try:
                for path in run_folders(place):
                    _keep(found, path.relative_to(place).as_posix(), path)
            except (UserError, OSError):  # deleted since
                continue
        return {name: path for name, path in found.items() if _is_its_own(path)}

    def folder(self, name: str) -> Path:
        try:
            return self.folders()[name]
        except KeyError:
            raise NoSuchRun(name) from None

    def status(self, path: Path) -> RunStatus:
        """Read again only where a file has changed, or the run is alive."""
        mark = (*(_changed(path / name) for name in ("config.yaml", STATUS, "metrics.jsonl", LOCK)),)
        alive = RunFolder(path).is_locked()
        with self._lock:
            kept = self._statuses.get(path)
        if kept is not None and kept[0] == (mark, alive):
            return kept[1]
        status = status_of(path)
        with self._lock:
            self._statuses[path] = ((mark, alive), status)
        return status


def refuse_no_runs(places: Sequence[Path]) -> None:
    """A folder that was named and has none is a slip; where runs are kept, one may begin at any time."""
    for place in places:
        if place != default_runs_folder() and not Runs([place]).folders():
            raise UserError(f"no run in '{place}': name a run, or a folder that holds some")


class NoSuchRun(UserError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no run {name!r} here")


def _is_its_own(path: Path) -> bool:
    try:
        return leads_out(path) is None
    except OSError:  # deleted since
        return False


def _keep(found: dict[str, Path], name: str, path: Path) -> None:
    """Two folders may have runs of one name."""
    number, key = 1, name
    while key in found:
        number += 1
        key = f"{name} ({number})"
    found[key] = path


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        at = path.stat()
    except OSError:
        return None
    return at.st_size, at.st_mtime_ns


def differences(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: the key, and each run's value as text."""
    flat = [{key: _text(value) for key, value in flatten(config).items()} for config in configs.values()]
    return [{"key": key, "values": values} for key, values in differing_keys(flat).items()]


def _text(value: Any) -> str:
    """As it stands in the file: `true`, `null`."""
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**9)).removesuffix("\n...\n").strip()


def written_config(folder: Path) -> str:
    return config_text(folder / "config.yaml", f"{folder.name}/config.yaml")


def read_config(folder: Path) -> Mapping[str, Any]:
    config = quick_yaml(written_config(folder), f"{folder.name}/config.yaml")
    if not isinstance(config, dict):
        raise UserError(f"{folder.name}: its config.yaml holds no keys")
    return config
