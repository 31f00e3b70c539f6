"""Cases of hostile run folders, read as `runs`, `show`, `report` and `view` do: pipes, devices, views, damaged logs."""

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, get_args

from benchmarks.fuzzing.folders import damaged, runs
from benchmarks.fuzzing.kinds import Case
from benchmarks.fuzzing.mutations import NASTY_TEXTS, changed_text
from vigneron.errors import UserError
from vigneron.run_store.curves import curves_of
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.run_details import details_json, run_details
from vigneron.run_store.sample_search import SampleQuery, SampleSearch, Sort, Which
from vigneron.run_store.status import saved_checkpoints, status_of
from vigneron.web.runs import Runs

COUNT = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
COLUMNS = ", ".join(f"x AS {name}" for name in SampleSearch.COLUMNS)
STATEMENTS = (
    f"DROP TABLE samples; CREATE VIEW samples AS {COUNT} SELECT {COLUMNS} FROM n",
    f"DROP TABLE steps; CREATE VIEW steps AS {COUNT} SELECT 'eval' AS kind, x AS step FROM n",
    f"CREATE TRIGGER t AFTER DELETE ON samples BEGIN INSERT INTO steps {COUNT} SELECT x, x FROM n; END",
    "CREATE VIEW extra AS SELECT 1",
    "DROP TABLE samples",
    "DROP TABLE steps; DROP TABLE prompts",
    "DROP TABLE samples; CREATE TABLE samples (step, kind)",
    "DROP TABLE samples; CREATE TABLE samples (x AS (zeroblob(1000000000)), step, kind, sample)",
    "UPDATE samples SET extras = 'not json'",
    "UPDATE samples SET extras = '[]', reward = 'high', step = 'x'",
    "UPDATE samples SET completion = zeroblob(100000), reward = 9e999",
    "UPDATE samples SET sample = NULL, prompt = NULL, truncated = 'yes'",
    "INSERT INTO steps VALUES ('eval', 9223372036854775807), ('eval', NULL), ('train', 'x')",
)
STEPS = ("1e999", "-1", "true", "99999999999999999999")
LINES = ("", "{}", "[]", "null", "x" * 300_000, *(f'{{"step": {step}}}' for step in STEPS))
BESIDE = ("samples.sqlite-wal", "curves.sqlite-journal", ".lock")


def run_folder_case(random: Random, folder: Path) -> Case:
    run = folder / "runs" / random.choice(("run", "a b", "é"))
    shutil.copytree(random.choice(runs()), run, ignore=shutil.ignore_patterns("checkpoints"))
    checkpoint = run / "checkpoints" / "step-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"model.safetensors": "0"}', encoding="utf-8")
    (checkpoint / "model.safetensors").write_bytes(b"")
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice((_not_a_file, _not_a_file, _statement, _statement, _log_line, _other))(run, random)
    query = SampleQuery(
        step=random.choice((-1, 0, 1, 2, 2**62)),
        kind=random.choice(("train", "eval")),
        which=random.choice(get_args(Which)),
        search=random.choice(("", "a", "%", "\\", *NASTY_TEXTS))[:200].encode("utf-8", "replace").decode(),
        category=random.choice(("", "words")),
        sort=random.choice(get_args(Sort)),
        offset=random.choice((0, 7)),
    )
    return lambda: _read(run, query)


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())


def _not_a_file(run: Path, random: Random) -> None:
    """A pipe, a socket, a device, a link or a folder in place of a file, or of one that SQLite would open."""
    names = [*(str(path.relative_to(run)) for path in _files(run)), *BESIDE]
    path = run / random.choice(names)
    with suppress(OSError):
        path.unlink(missing_ok=True)
        kind = random.randrange(6)
        if kind < 3:
            os.mkfifo(path)
        elif kind == 3:
            path.symlink_to(random.choice(("/dev/zero", "/dev/full", path.name, "nowhere", "../..")))
        elif kind == 4:
            path.mkdir()
        else:
            here = os.getcwd()
            os.chdir(path.parent)
            try:
                with closing(socket.socket(socket.AF_UNIX)) as bound:
                    bound.bind(path.name)
            finally:
                os.chdir(here)


def _statement(run: Path, random: Random) -> None:
    path = run / "samples.sqlite"
    if path.is_file() and not path.is_symlink():
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
            db.executescript(random.choice(STATEMENTS))


def _log_line(run: Path, random: Random) -> None:
    """A bad line in the middle of a log, or a log of odd numbers."""
    path = run / random.choice(("metrics.jsonl", "timings.jsonl", "notices.jsonl"))
    if not path.is_file() or path.is_symlink():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    odd = random.choice((*LINES, json.dumps({"step": 1, "reward": random.choice((10**200, "x", [], {}, True, None))})))
    lines.insert(random.randrange(len(lines) + 1), odd)
    path.write_text("\n".join(lines) + random.choice(("\n", "", "\r\n")), encoding="utf-8")


def _other(run: Path, random: Random) -> None:
    files = _files(run)
    if files:
        path = random.choice(files)
        if random.random() < 0.5:
            damaged(path, random)
        elif path.suffix in (".yaml", ".json"):
            text = path.read_text(encoding="utf-8", errors="replace")
            path.write_bytes(changed_text(text, random).encode("utf-8", "surrogatepass"))


def _read(run: Path, query: SampleQuery) -> None:
    """All readers, whatever the others find; raises the first error."""
    errors = []
    readers: list[Callable[[], Any]] = [
        lambda: status_of(run),
        lambda: records_of(run),
        lambda: damage_of(run),
        lambda: saved_checkpoints(run),
        lambda: [Runs([run.parent]).status(path) for path in Runs([run.parent]).folders().values()],
        lambda: _curves(run),
        lambda: json.dumps(details_json(run_details(run)), default=str),
        lambda: RunFolder.open(run).metrics(),
        lambda: _samples(run, query),
        lambda: RunFolder(run).is_locked(),
    ]
    for reader in readers:
        try:
            reader()
        except UserError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _curves(run: Path) -> None:
    curves, _ = curves_of(RunFolder.open(run).path)
    if curves is not None:
        try:
            curves.read(curves.names()[:5])
        finally:
            curves.close()


def _samples(run: Path, query: SampleQuery) -> None:
    if not (run / "samples.sqlite").is_file():
        return
    with SampleSearch(RunFolder.open(run).path) as store:
        store.kinds()
        store.steps_around(query.kind, query.step)
        for sample in store.find(query).samples[:1]:
            store.history(sample.prompt, query.kind)
        store.one(query.step, query.kind, 0)
