"""An archive gives back the logs it was made of; a damaged or hostile one is one line, and writes nothing elsewhere."""

import io
import lzma
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks.study import keep
from hypothesis import given
from hypothesis import strategies as st

from vigneron.cli.main import main
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.run_store import archive
from vigneron.run_store.archive import archives_unpacked, check_archive, unpacked, write_archive
from vigneron.run_store.folder import RunFolder

LOGS = Path(__file__).parent.parent.parent / "docs" / "results" / "logs"


def make_run(place: Path, name: str, *, seed: int = 0, timed: bool = True) -> Path:
    folder = RunFolder.create(place, name, exact_name=True)
    folder.write_config(load_config("demo", keys={"seed": seed}))
    for step in (1, 2):
        folder.append("metrics.jsonl", {"step": step, "reward": (seed + step) / 10})
        if timed:
            folder.append("timings.jsonl", {"step": step, "seconds": 0.5})
    (folder.path / "notices.jsonl").write_bytes(b"not packed")
    return folder.path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / "runs", f"demo-seed-{seed}", seed=seed, timed=seed > 0) for seed in (0, 1)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def plain(name: str, data: bytes = b"{}\n") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), data


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def refusal(file: Path) -> str:
    with pytest.raises(UserError) as caught, unpacked(file):
        pass
    line = str(caught.value)
    assert "\n" not in line
    assert str(file) in line
    return line


# ---------------------------------------------------------------------------------------------- there and back


def test_logs_come_back_as_they_were(runs: list[Path], tmp_path: Path) -> None:
    file = write_archive(runs, tmp_path / "two.tar.xz")
    expected = {name: data for name, data in contents(tmp_path / "runs").items() if "notices" not in name}
    with unpacked(file) as folder:
        assert folder.name == "two"
        assert contents(folder) == expected
        assert len(expected) == 5
    assert not folder.exists()
    assert write_archive(runs[::-1], tmp_path / "again.tar.xz").read_bytes() == file.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar.xz", "runs", "two.tar.xz"]


@pytest.mark.parametrize("name", [".tar.xz", "..tar.xz", "...tar.xz", ".hidden.tar.xz"])
def test_the_temporary_folder_stays_in_its_place(runs: list[Path], tmp_path: Path, name: str) -> None:
    write_archive(runs, tmp_path / "two.tar.xz").rename(tmp_path / name)
    with unpacked(tmp_path / name) as folder:
        assert folder.name == "runs"
        assert len(contents(folder)) == 5


def test_a_folder_is_taken_as_it_is(runs: list[Path]) -> None:
    with unpacked(runs[0].parent) as folder:
        assert folder == runs[0].parent


def test_only_archives_are_replaced_in_a_command(runs: list[Path], tmp_path: Path) -> None:
    file = write_archive(runs, tmp_path / "two.tar.xz")
    with archives_unpacked(["demo", str(file), "data.train=x.tar.xz", str(runs[0])]) as words:
        assert [words[0], *words[2:]] == ["demo", "data.train=x.tar.xz", str(runs[0])]
        assert sorted(path.name for path in Path(words[1]).iterdir()) == ["demo-seed-0", "demo-seed-1"]
    assert not Path(words[1]).exists()


def test_an_archive_of_tar_and_xz_themselves_is_read(runs: list[Path], tmp_path: Path) -> None:
    """With entries for the folders, and the largest dictionary."""
    with tarfile.open(tmp_path / "own.tar.xz", "w:xz", preset=9) as tar:
        for run in runs:
            (run / "notices.jsonl").unlink()
            tar.add(run, run.name)
    with unpacked(tmp_path / "own.tar.xz") as folder:
        assert contents(folder) == contents(tmp_path / "runs")


def test_what_cannot_be_packed_is_refused_first(runs: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path / "others", "demo-seed-0", seed=5)
    (tmp_path / "taken.tar.xz").mkdir()
    for paths, name, reason in (
        (runs, "logs.zip", "ends in .tar.xz"),
        (runs, "none/logs.tar.xz", "there is no folder"),
        (runs, "taken.tar.xz", "is a folder"),
        ([*runs, other], "logs.tar.xz", "have the same name"),
    ):
        with pytest.raises(UserError, match=reason):
            check_archive(paths, tmp_path / name)


def test_more_than_can_be_read_is_not_written(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST", tarfile.RECORDSIZE + 2_000)
    with pytest.raises(UserError, match="the logs have more than"):
        write_archive(runs, tmp_path / "logs.tar.xz")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


# ---------------------------------------------------------------------------------------------- the command


def compared(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["vigneron", "compare", *map(str, words)])
    try:
        main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


@pytest.mark.slow
def test_comparing_an_archive_is_comparing_its_runs(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "two.tar.xz"
    assert compared(monkeypatch, *runs, "--out", tmp_path / "first", "--archive", file) == 0
    assert f"wrote   {file}\n" in capsys.readouterr().out.replace("\n/", "/")
    monkeypatch.chdir(tmp_path)
    assert compared(monkeypatch, "two.tar.xz") == 0
    first, second = contents(tmp_path / "first"), contents(tmp_path / "runs" / "compare-two")
    assert sorted(first) == ["compare.csv", "compare.html", "compare.svg"]
    assert first == second


def test_errors_name_the_archive_not_the_temporary_folder(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs[0] / "metrics.jsonl").write_text("{\n")
    file = write_archive(runs, tmp_path / "two.tar.xz")
    assert compared(monkeypatch, file) == 2
    assert capsys.readouterr().err == f"error: cannot read '{file}/demo-seed-0/metrics.jsonl': line 1 is not JSON\n"
    assert compared(monkeypatch, "nothing.tar.xz") == 2
    assert capsys.readouterr().err == "error: cannot read 'nothing.tar.xz': No such file or directory\n"


# ---------------------------------------------------------------------------------------------- from others


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (plain("../metrics.jsonl"), "is not a log of a run"),
        (plain("/tmp/metrics.jsonl"), "is not a log of a run"),
        (plain("a/../metrics.jsonl"), "is not a log of a run"),
        (plain("a/b/metrics.jsonl"), "is not a log of a run"),
        (plain("metrics.jsonl"), "is not a log of a run"),
        (plain(".hidden/metrics.jsonl"), "is not a log of a run"),
        (plain("a\x1b/metrics.jsonl"), "is not a log of a run"),
        (plain("a/samples.sqlite"), "is not a log of a run"),
        (special("a/metrics.jsonl", tarfile.SYMTYPE, "/etc/passwd"), "is not a log of a run"),
        (special("a/metrics.jsonl", tarfile.LNKTYPE, "a/config.yaml"), "is not a log of a run"),
        (special("a/metrics.jsonl", tarfile.FIFOTYPE), "is not a log of a run"),
        (special("a/metrics.jsonl", tarfile.CHRTYPE), "is not a log of a run"),
        (plain("a/config.yaml"), "is in it twice"),
        (plain("a" * 300 + "/metrics.jsonl"), "File name too long"),
        (special("..", tarfile.DIRTYPE), None),
    ],
)
def test_only_logs_are_taken(tmp_path: Path, member: tuple[tarfile.TarInfo, bytes], reason: str | None) -> None:
    file = tmp_path / "bad.tar.xz"
    file.write_bytes(lzma.compress(tar_of(plain("a/config.yaml"), member)))
    if reason is None:
        with unpacked(file) as folder:
            assert list(contents(folder)) == ["a/config.yaml"]
    else:
        assert reason in refusal(file)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar.xz"]


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    """A header that claims a tebibyte of zeros, and has no bytes."""
    member = tarfile.TarInfo("a/metrics.jsonl")
    member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**40), "GNU.sparse.name": "a/metrics.jsonl"}
    file = tmp_path / "bad.tar.xz"
    file.write_bytes(lzma.compress(tar_of((member, b""))))
    assert "is not a log of a run" in refusal(file)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bad.tar.xz"
    monkeypatch.setattr(archive, "LARGEST", 2**22)
    file.write_bytes(lzma.compress(tar_of(plain("a/metrics.jsonl", bytes(2**23)))))
    assert file.stat().st_size < 5_000
    assert "it holds more than 4 MiB" in refusal(file)
    monkeypatch.setattr(archive, "MOST_FILES", 2)
    file.write_bytes(lzma.compress(tar_of(*(plain(f"{name}/metrics.jsonl") for name in "abc"))))
    assert "it holds more than 2 files" in refusal(file)
    file.write_bytes(
        lzma.compress(tar_of(plain("a/metrics.jsonl")), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}])
    )
    assert "damaged" in refusal(file)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda packed: b"",
    "text": lambda packed: b"not an archive",
    "truncated": lambda packed: packed[: len(packed) // 2],
    "bytes after the end": lambda packed: packed + b"more",
    "damaged": lambda packed: packed[:100] + bytes(20) + packed[120:],
    "no tar": lambda packed: lzma.compress(b"x" * 5_000),
    "truncated tar": lambda packed: lzma.compress(lzma.decompress(packed)[:1_000]),
    "old format": lambda packed: lzma.compress(lzma.decompress(packed), format=lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_one_line(runs: list[Path], tmp_path: Path, how: str) -> None:
    file = write_archive(runs, tmp_path / "two.tar.xz")
    file.write_bytes(BROKEN[how](file.read_bytes()))
    assert refusal(file) == f"cannot read '{file}': it is damaged, or not a .tar.xz file"


def test_an_archive_without_runs(tmp_path: Path) -> None:
    file = tmp_path / "none.tar.xz"
    file.write_bytes(lzma.compress(tar_of()))
    assert refusal(file).endswith("it holds no runs")


@given(changes=st.lists(st.tuples(st.integers(0, 4_000), st.binary(min_size=1, max_size=12)), min_size=1, max_size=6))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(tar_of(plain("a/config.yaml"), plain("a/metrics.jsonl", b'{"step": 1}\n' * 50)))
    for place, new in changes:
        data[place : place + len(new)] = new
    file = tmp_path_factory.getbasetemp() / "fuzzed.tar.xz"
    file.write_bytes(lzma.compress(bytes(data), preset=0))
    with suppress(UserError), unpacked(file) as folder:
        assert {path.name for path in folder.glob("*/*")} <= set(archive.PACKED)


# ---------------------------------------------------------------------------------------------- the studies


def test_a_study_keeps_every_tenth_step_and_all_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, last in (("whole", 30), ("stopped", 20)):
        folder = RunFolder.create(tmp_path / "runs", name, exact_name=True)
        folder.write_config(load_config("demo", keys={"steps": 30}))
        for step in range(1, last + 1):
            evaluated = {"eval/accuracy": 0.123456} if step == 15 else {}
            folder.append("metrics.jsonl", {"step": step, "reward": 1 / 3, **evaluated})
    keep(tmp_path / "runs", tmp_path / "kept.tar.xz")
    assert capsys.readouterr().out == "not finished: stopped\n"
    with unpacked(tmp_path / "kept.tar.xz") as study:
        assert [path.name for path in study.iterdir()] == ["whole"]
        records = RunFolder.open(study / "whole").metrics()
    assert [record["step"] for record in records] == [10, 15, 20, 30]
    assert records[1] == {"step": 15, "reward": 0.3333, "eval/accuracy": 0.1235}


@pytest.mark.parametrize(("name", "count"), [("pgsrm-study", 73), ("grape-study", 13), ("methods-study", 20)])
def test_the_logs_of_the_studies_are_whole(name: str, count: int) -> None:
    with unpacked(LOGS / f"{name}.tar.xz") as folder:
        folders = [RunFolder.open(path) for path in folder.iterdir()]
        assert len(folders) == count
        for run in folders:
            assert run.metrics()[-1]["step"] == run.config().steps, run.path.name
