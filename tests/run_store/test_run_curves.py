"""The index of curves: what it says is what metrics.jsonl says, at any length, after any interruption."""

import json
import random
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.run_store.curves import (
    CURVES,
    CurveIndex,
    CurveLog,
    CurveStore,
    curves_of,
    read_log,
)
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.series import joined, joined_to, spans_of


def records(first: int, last: int) -> list[dict[str, Any]]:
    """A figure of each step, one of every tenth, and one that is sometimes missing."""
    draw = random.Random(0)
    values = [draw.random() for _ in range(last + 1)]
    return [
        {"step": step, "reward": values[step]}
        | ({"eval/reward": -values[step]} if step % 10 == 0 else {})
        | {"kl": None if step % 3 == 0 else values[step] * 2}
        for step in range(first, last + 1)
    ]


def write_log(folder: Path, lines: list[dict[str, Any]]) -> RunFolder:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunFolder(folder)


def indexed(folder: Path, lines: list[dict[str, Any]]) -> CurveStore:
    store = CurveStore(folder)
    store.add(lines)
    return store


NAMES = ["reward", "eval/reward", "kl", "none such"]


@pytest.mark.parametrize("length", [1, 255, 256, 257, 700, 1000])
def test_a_short_run_is_answered_exactly(tmp_path: Path, length: int) -> None:
    lines = records(0, length)
    store, log = indexed(tmp_path, lines), CurveLog(write_log(tmp_path, lines).path / "metrics.jsonl")
    assert sorted(store.names()) == sorted(log.names())
    assert store.last_step() == log.last_step() == length
    for window in ((0, None), (17, 300), (length, length), (length + 5, None)):
        assert store.read(NAMES, *window, limit=2000) == log.read(NAMES, *window, limit=2000)


def test_a_long_run_is_answered_with_few_points_that_lose_no_spike(tmp_path: Path) -> None:
    lines = records(0, 20_000)
    lines[12_345]["reward"] = 99.0
    store = indexed(tmp_path, lines)
    curves = store.read(["reward", "eval/reward"])
    whole = curves["reward"]
    assert 200 <= len(whole.steps) <= 1000
    assert max(whole.highs) == 99.0
    assert sum(whole.counts) == 20_001
    assert whole.steps == sorted(whole.steps)
    mean = sum(m * c for m, c in zip(whole.means, whole.counts, strict=True)) / 20_001
    assert mean == pytest.approx(sum(line["reward"] for line in lines) / 20_001)
    finer = store.read(["reward"], 12_300, 12_400)["reward"]
    assert finer.steps == list(range(12_300, 12_401))
    assert finer.means[45] == 99.0
    assert len(curves["eval/reward"].steps) <= 1000


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 20))
def test_thinned_keeps_the_extremes_and_the_sum(values: list[float], most: int) -> None:
    spans = spans_of(list(range(len(values))), values)
    few = joined_to(spans, most)
    assert len(few) == min(most, len(values))
    whole = joined(few)
    assert (whole.low, whole.high, whole.number) == (min(values), max(values), len(values))
    assert whole.total == pytest.approx(sum(values), abs=1e-3)


@settings(max_examples=10, deadline=None)
@given(stopped=st.integers(0, 600), back_to=st.integers(0, 600), end=st.integers(1, 700))
def test_after_any_resume_the_index_is_as_if_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory, stopped: int, back_to: int, end: int
) -> None:
    """The run wrote until `stopped`, its log was cut back to a checkpoint, and it goes on."""
    folder = write_log(tmp_path_factory.mktemp("run"), records(0, stopped))
    with CurveIndex(folder, pytest.fail):
        pass
    checkpoint = min(back_to, stopped)
    write_log(folder.path, records(0, checkpoint))
    with CurveIndex(folder, pytest.fail) as index:
        for line in records(checkpoint + 1, checkpoint + end):
            folder.append("metrics.jsonl", line)
            index.add(line)
    store, note = curves_of(folder.path)
    assert note is None
    assert isinstance(store, CurveStore)
    assert store.read(NAMES, limit=9999) == read_log(folder.path / "metrics.jsonl").read(NAMES, limit=9999)
    store.close()


def test_a_broken_index_is_said_and_the_log_is_read(tmp_path: Path) -> None:
    folder = write_log(tmp_path, records(0, 20))
    (tmp_path / CURVES).write_bytes(b"garbage" * 500)
    curves, note = curves_of(tmp_path)
    assert note is not None
    assert "metrics.jsonl was read instead" in note
    assert curves is not None
    assert len(curves.read(["reward"])["reward"].steps) == 21
    with CurveIndex(folder, pytest.fail):  # the run makes it again
        pass
    assert isinstance(curves_of(tmp_path)[0], CurveStore)


def test_an_index_that_is_behind_is_not_used(tmp_path: Path) -> None:
    indexed(tmp_path, records(0, 10)).close()
    write_log(tmp_path, records(0, 11))
    assert curves_of(tmp_path)[1] is None  # a step may be in the log a moment earlier
    write_log(tmp_path, records(0, 12))
    curves, note = curves_of(tmp_path)
    assert "out of date" in str(note)
    assert curves is not None
    assert curves.last_step() == 12


def test_an_index_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    folder = write_log(tmp_path, records(0, 3))
    (tmp_path / CURVES).mkdir()
    said: list[str] = []
    with CurveIndex(folder, said.append) as index:
        index.add({"step": 4, "reward": 1.0})
    assert len(said) == 1
    assert "reads metrics.jsonl instead" in said[0]


def test_a_log_with_damaged_and_unfinished_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "a": 1}\n\xff\xfe{{\n[1]\n{"step": "x"}\n{"step": 1, "a": NaN}\n{"step": 2, "a": 3}')
    log = CurveLog(path)
    assert log.read(["a"])["a"].steps == [0]
    path.write_bytes(path.read_bytes() + b"\n")
    assert read_log(path).read(["a"])["a"].steps == [0, 2]


@pytest.mark.slow
def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A sparse file: it takes no space on the disk."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "a": 1}\n')
    with path.open("r+b") as file:
        file.truncate(2**28)
        file.seek(0, 2)
        file.write(b'\n{"step": 1, "a": 2}\n')
    tracemalloc.start()
    try:
        assert read_log(path).read(["a"])["a"].steps == [0, 1]
        assert [record["step"] for record in RunFolder(tmp_path).metrics()] == [0, 1]
        assert damage_of(tmp_path)[0] == "metrics.jsonl: damaged and left out: line 2"
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["names", "last_step"])
def test_a_store_that_cannot_be_read_is_closed(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_log(tmp_path / "run", records(0, 3))
    with CurveIndex(folder, pytest.fail):
        pass
    closed: list[CurveStore] = []
    close = CurveStore.close

    def damaged(store: CurveStore) -> None:
        raise sqlite3.DatabaseError("damaged")

    def closing(store: CurveStore) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(CurveStore, part, damaged)
    monkeypatch.setattr(CurveStore, "close", closing)
    curves, note = curves_of(folder.path)
    assert isinstance(curves, CurveLog)
    assert "damaged" in str(note)
    assert len(closed) == 1
