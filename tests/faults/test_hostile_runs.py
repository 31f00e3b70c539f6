"""A run's folder from somebody who means harm: nothing in it makes a reader wait, or run without end."""

import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.view_data import write_run
from vigneron.errors import UserError
from vigneron.files import open_regular, sha256_of
from vigneron.recipe import config_text
from vigneron.run_store import sqlite_files
from vigneron.run_store.curves import CURVES, curves_of
from vigneron.run_store.folder import LOCK, LOGS, RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.notices import NOTICES
from vigneron.run_store.run_details import run_details
from vigneron.run_store.sample_search import SampleQuery, SampleSearch
from vigneron.run_store.samples import SampleStore, reading
from vigneron.run_store.status import STATUS, last_records, saved_checkpoints, status_of
from vigneron.training.checkpoint.manifest import fault_of
from vigneron.web.runs import Runs

FILES = ("config.yaml", STATUS, LOCK, "samples.sqlite", CURVES, NOTICES, *LOGS)
NOT_FILES: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A reader that waits fails, instead of all tests waiting for it."""

    def late(*_: Any) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "run")


def read_everything(run: Path) -> list[str]:
    """The errors of all readers, each of which must be one that the user can act on."""
    errors = []
    readers: list[Callable[[], Any]] = [
        lambda: status_of(run),
        lambda: records_of(run),
        lambda: [last_records(run / name) for name in LOGS],
        lambda: curves_of(run),
        lambda: run_details(run),
        lambda: RunFolder.open(run),
        lambda: RunFolder(run).metrics(),
        lambda: RunFolder(run).is_locked(),
        lambda: Runs([run.parent]).folders(),
        lambda: saved_checkpoints(run),
        lambda: SampleStore(run, read_only=True),
        lambda: SampleStore(run),
    ]
    for reader in readers:
        try:
            reader()
        except UserError as error:
            errors.append(str(error))
    return errors


@pytest.mark.parametrize("kind", NOT_FILES)
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_file_is_not_opened(run: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)  # a socket's address is short
    (run / name).unlink(missing_ok=True)
    NOT_FILES[kind](run / name)
    errors = read_everything(run)
    if name == "config.yaml":
        assert any("is not a run's folder" in error for error in errors)
    else:
        assert any("not a regular file" in error or "outside the run's folder" in error for error in errors)
        with pytest.raises(UserError, match=r"regular file|cannot write|outside"):
            RunFolder.open(run).lock()
        assert Runs([run.parent]).folders() == {}


def test_the_commands_name_the_file(run: Path) -> None:
    (run / "samples.sqlite").unlink()
    os.mkfifo(run / "samples.sqlite")
    for command in ("show", "report", "chat", "resume"):
        answer = vigneron(command, run)
        assert answer.code == 2
        assert "samples.sqlite' is not a regular file: remove it" in answer.err
    assert vigneron("runs", run.parent).code == 0


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state/scalars.json"])
def test_pipes_in_a_checkpoint(run: Path, name: str) -> None:
    checkpoint = run / "checkpoints" / "step-2"
    (checkpoint / "state").mkdir(parents=True)
    for one in ("manifest.json", "model.safetensors", "state/scalars.json", "state/tensors.safetensors"):
        (checkpoint / one).write_text('{"model.safetensors": "0"}', encoding="utf-8")
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(UserError, match="is not a regular file"):
        RunFolder.open(run)
    assert fault_of(checkpoint) is not None
    saved_checkpoints(run)


def test_other_readers(tmp_path: Path) -> None:
    pipe = tmp_path / "a.yaml"
    os.mkfifo(pipe)
    for read in (open_regular, sha256_of):
        with pytest.raises(OSError, match="not a regular file"):
            read(pipe)
    with pytest.raises(UserError, match="cannot read the recipe: it is not a regular file"):
        config_text(pipe, "the recipe")
    answer = vigneron("validate", pipe)
    assert (answer.code, answer.err.count("\n")) == (2, 1)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT * FROM n"
COLUMNS = ", ".join(f"x AS {name}" for name in SampleStore.COLUMNS)
HOSTILE_SQL = {
    "view": f"DROP TABLE samples; CREATE VIEW samples AS SELECT {COLUMNS} FROM ({ENDLESS})",
    "view of steps": f"DROP TABLE steps; CREATE VIEW steps AS SELECT 'a' AS kind, x AS step FROM ({ENDLESS})",
    "trigger": f"CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples WHERE step IN ({ENDLESS}); END",
    "virtual table": "DROP TABLE samples; CREATE VIRTUAL TABLE samples USING fts5(step, kind, sample)",
}


@pytest.mark.parametrize("name", HOSTILE_SQL)
def test_a_database_has_plain_tables_only(run: Path, name: str) -> None:
    db = sqlite3.connect(run / "samples.sqlite")
    try:
        db.executescript(HOSTILE_SQL[name])
    except sqlite3.OperationalError:
        pytest.skip("SQLite was built without it")
    db.close()
    for read_only in (True, False):
        with pytest.raises(UserError, match=r"samples\.sqlite': it contains '.*', which is not a plain table; move"):
            SampleStore(run, read_only=read_only)
    with pytest.raises(UserError, match="not a plain table"):
        SampleSearch(run)


def test_a_query_has_a_deadline_and_the_page_gets_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without an index, and millions of rows to search, take as long as they like."""
    monkeypatch.setattr(sqlite_files, "QUERY_SECONDS", 0.2)
    began = time.process_time()
    with (
        pytest.raises(UserError, match=r"samples\.sqlite': a query takes more than"),
        SampleSearch(run) as store,
        reading(run / "samples.sqlite"),
    ):
        store._db.execute(ENDLESS).fetchall()
    assert time.process_time() - began < 5
    with SampleSearch(run) as store:  # each query has its own
        for step in range(1, 20):
            assert store.find(SampleQuery(step)).count == 8


def test_a_value_has_a_limit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "LONGEST_VALUE", 1_000_000)
    db = sqlite3.connect(run / "samples.sqlite")
    db.execute("UPDATE samples SET completion = zeroblob(2000000) WHERE step = 3 AND sample = 1")
    db.commit()
    db.close()
    store = SampleStore(run, read_only=True)
    with pytest.raises(UserError, match="too big"):
        store.page(step=3)
    assert len(store.page(step=4)) == 8
    store.close()


def test_a_damaged_store_of_curves_is_a_note_or_one_line(run: Path) -> None:
    """Found by fuzzing: damage that shows only when a curve is read."""
    db = sqlite3.connect(run / CURVES)
    db.execute("UPDATE recent SET record = '{' WHERE step = 3")
    db.commit()
    db.close()
    curves, note = curves_of(run)
    assert curves is not None
    assert "metrics.jsonl was read instead" in str(note)
    assert curves.read(["reward"])["reward"].steps[-1] == 30
    db = sqlite3.connect(run / CURVES)
    db.executescript("DELETE FROM recent WHERE step = 3; DROP TABLE blocks; CREATE TABLE blocks (name, start)")
    db.close()
    curves, _ = curves_of(run)
    assert curves is not None
    with pytest.raises(UserError, match=r"^cannot read curves\.sqlite: no such column"):
        curves.read(["reward"])
    curves.close()


def test_a_link_to_itself_is_refused(run: Path) -> None:
    checkpoint = run / "checkpoints" / "step-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(UserError, match="is not a regular file"):
        RunFolder.open(run)
