"""The pass by several processes, the index of lines, and which files are looked at again."""

import json
import os
import select
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.data import digests, first_pass, lines
from vigneron.data.dataset import ColumnReader, check_rows
from vigneron.data.digests import DIGEST, as_digests, record_of, repeated
from vigneron.data.first_pass import read_all, read_list
from vigneron.data.lines import LineRows
from vigneron.data.sources import SourceSpec, open_source
from vigneron.errors import UserError

Row = dict[str, Any]


class Plain:
    """Rows as they are."""

    def __call__(self, row: Row, place: object) -> Row | None:
        return row

    def add(self, later: Any) -> None: ...

    def finish(self, where: str) -> list[str]:
        return []


class Traced(Plain):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, row: Row, place: object) -> Row | None:
        (self.folder / f"{os.getpid()}.pid").touch()
        return row


NEVER = get_context("fork").Event()


class FirstFails(Traced):
    def __call__(self, row: Row, place: object) -> Row | None:
        if row["n"] == 0:
            raise UserError(f"data: {place} is bad")
        NEVER.wait(600)  # a row that takes long
        return super().__call__(row, place)


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_pass, "PARALLEL_FROM", 0)
    monkeypatch.setattr(first_pass, "cores", lambda: 64)


@pytest.mark.usefixtures("many_processes")
def test_an_error_in_the_first_rows_does_not_wait_for_the_others(tmp_path: Path) -> None:
    source = open_source(SourceSpec((str(write(tmp_path / "a.jsonl", [{"n": n} for n in range(16)])),)))
    with pytest.raises(UserError, match=r"a.jsonl', row 1 is bad$"):
        read_all(source, FirstFails(tmp_path), measured=())
    assert not list(tmp_path.glob("*.pid"))


class Waits(Traced):
    def __call__(self, row: Row, place: object) -> Row | None:
        super().__call__(row, place)
        NEVER.wait()
        return row


@pytest.mark.usefixtures("many_processes")
def test_readers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    source = open_source(SourceSpec((str(write(tmp_path / "a.jsonl", [{"n": n} for n in range(16)])),)))
    run = get_context("fork").Process(target=read_all, args=(source, Waits(tmp_path)), kwargs={"measured": ()})
    run.start()
    while len(readers := list(tmp_path.glob("*.pid"))) < 8:
        assert run.is_alive()
    handles = [os.pidfd_open(int(path.stem)) for path in readers]
    run.kill()
    run.join()
    for handle in handles:
        assert select.select([handle], [], [], 600)[0], "a reader is still running"
        os.close(handle)


@pytest.mark.usefixtures("many_processes")
def test_at_most_eight_processes_read(tmp_path: Path) -> None:
    source = open_source(SourceSpec((str(write(tmp_path / "a.jsonl", [{"n": n} for n in range(100)])),)))
    rows, _ = read_all(source, Traced(tmp_path), measured=())
    assert len(rows) == 100
    assert len(list(tmp_path.glob("*.pid"))) == 8


def test_a_row_is_read_though_another_file_of_the_source_has_changed(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", [{"n": name}]) for name in "ab"]
    rows, _ = read_all(open_source(SourceSpec(tuple(map(str, files)))), Plain(), measured=())
    write(files[1], [{"n": "c"}, {"n": "d"}])
    assert rows[0] == {"n": "a"}
    with pytest.raises(UserError, match=r"^data: '.*b.jsonl' changed while the run was reading it"):
        rows[1]


def test_equal_lines_are_duplicates_of_a_large_source(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": 2}\n{"b": 2, "a": 1}\n{"a": 1, "b": 2}\n')
    source = open_source(SourceSpec((str(path),)))
    assert list(read_all(source, Plain(), measured=(), hash_lines=True)[0]) == [{"a": 1, "b": 2}] * 2
    assert list(read_all(source, Plain(), measured=())[0]) == [{"a": 1, "b": 2}]
    (tmp_path / "a.csv").write_text("a,b\n1,2\n\n3,4\n1,2")
    table = open_source(SourceSpec((str(tmp_path / "a.csv"),)))
    assert list(read_all(table, Plain(), measured=(), hash_lines=True)[0]) == [
        {"a": "1", "b": "2"},
        {"a": "3", "b": "4"},
    ]


LINES = st.sampled_from(
    [b'{"a": 1}', b' {"a": "\xc3\xa9"} ', b'{"b": "\\u00e9 \\ud83d\\ude00"}', b"", b" \t", b"\xef\xbb\xbf", b"\x0c"]
)


@settings(deadline=None)
@given(
    given_lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    ended=st.booleans(),
    block=st.integers(1, 9),
)
def test_the_index_and_the_rows_are_those_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory, given_lines: list[tuple[bytes, bytes]], ended: bool, block: int
) -> None:
    data = b"".join(line + end for line, end in given_lines)
    data = data if ended else data.rstrip(b"\r\n")
    expected = [json.loads(line) for line in data.split(b"\n") if line.strip() not in (b"", b"\xef\xbb\xbf")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        path = tmp_path_factory.getbasetemp() / "index.jsonl"
        path.write_bytes(data)
        rows = LineRows.of(path, "x")
        assert list(rows) == expected
        assert [rows[at] for at in range(len(rows))] == expected
        assert list(rows.between(1, len(rows))) == expected[1:]


def test_repeated_hashes_are_found_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [5, 260, 5, 3, 260, 5, 516]  # 260, 516 and 4 have the same low byte
    data = as_digests(b"".join(value.to_bytes(2, "little") * (DIGEST // 2) for value in values))
    among = data[:, 0] >= 0
    expected = [(2, 0), (4, 1), (5, 0)]
    assert repeated(data, among) == expected
    among[0] = False
    assert repeated(data, among) == [(4, 1), (5, 2)]
    among[0] = True
    monkeypatch.setattr(digests, "SORTED", 2)
    assert repeated(data, among) == expected
    monkeypatch.setattr(digests, "RECORDED", 2)
    whole = record_of(data[[0, 1, 3]])
    monkeypatch.setattr(digests, "PIECE", 2)
    assert record_of(data, among.nonzero()[0][[0, 1, 3]]) == whole


def test_rows_that_lack_a_column_are_counted_in_one_way(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"prompt": "p"},
        {},
        {"prompt": "p", "chosen": [{"role": "usr", "content": ""}]},
        {"prompt": None},
    ]
    line = "row 2 has no 'prompt', nor does 1 other row$"
    with pytest.raises(UserError, match=line):
        check_rows(rows, ["prompt"], "'a'")
    with pytest.raises(UserError, match=line):
        read_list(rows, ColumnReader(["prompt"]), "'a'")
    source = open_source(SourceSpec((str(write(tmp_path / "a.jsonl", rows)),)))
    with pytest.raises(UserError, match=line):
        read_all(source, ColumnReader(["prompt"]), measured=())
