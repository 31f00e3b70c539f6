"""Logs of several runs in one compressed file, `NAME.tar.xz`, with `RUN/config.yaml`, `RUN/metrics.jsonl` … of each.

A file may come from others: names, kinds and sizes of its members are checked, and nothing else of it is used.
"""

import io
import lzma
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from vigneron.errors import UserError
from vigneron.files import open_regular, user_path
from vigneron.run_store import eval_rows
from vigneron.run_store.folder import check_name

SUFFIX = ".tar.xz"
RESULT = "result.json"
"""What a study measured of a run as a whole."""
OPTIONAL = ("timings.jsonl", RESULT)
PACKED = ("config.yaml", "metrics.jsonl", *OPTIONAL, eval_rows.FILE)
"""Files of a run that a comparison or a study reads; the last has the scores of each held-out row, and is made from the
run's samples."""
LARGEST = 2**29
"""Bytes, uncompressed."""
MOST_FILES = 100_000
MEMORY_LIMIT = 2**27
"""Bytes the decompressor may use: `xz -9` needs half of it."""
CHUNK = 2**20


def write_archive(runs: Sequence[Path], file: Path) -> Path:
    """Pack the logs of these runs. The same logs give the same bytes."""
    check_archive(runs, file)
    draft = file.with_name(f".{file.name}.draft")
    try:
        with (
            lzma.open(draft, "wb", preset=6 | lzma.PRESET_EXTREME) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for run in sorted(runs, key=_run_name):
                for name in PACKED[:-1]:
                    if name not in OPTIONAL or (run / name).is_file():
                        _add(tar, run / name, f"{_run_name(run)}/{name}")
                if rows := eval_rows.eval_row_lines(eval_rows.read_eval_rows(run)).encode():
                    member = tarfile.TarInfo(f"{_run_name(run)}/{eval_rows.FILE}")
                    member.size = len(rows)
                    tar.addfile(member, io.BytesIO(rows))
                if tar.offset > LARGEST - tarfile.RECORDSIZE:
                    raise UserError(f"cannot write '{file}': the logs have more than {LARGEST // 2**20} MiB")
        draft.replace(file)
    except OSError as error:
        raise UserError(f"cannot write '{file}': {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return file


def check_archive(runs: Sequence[Path], file: Path) -> None:
    """What can be refused before anything is trained."""
    if not file.name.endswith(SUFFIX) or file.name == SUFFIX:
        raise UserError(f"cannot write '{file}': the name of an archive ends in {SUFFIX}")
    if file.is_dir():
        raise UserError(f"cannot write '{file}': it is a folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write '{file}': there is no folder '{file.parent}', or it cannot be written")
    seen: dict[str, Path] = {}
    for run in runs:
        check_name(_run_name(run))
        if (other := seen.setdefault(_run_name(run), run)) is not run:
            raise UserError(f"cannot write '{file}': '{other}' and '{run}' have the same name")


def _run_name(run: Path) -> str:
    return run.resolve().name


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """As long as the file is now: a run may be writing to it."""
    with open_regular(path) as source:
        member = tarfile.TarInfo(name)
        member.size = os.fstat(source.fileno()).st_size
        tar.addfile(member, source)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A folder with the runs of an archive, for as long as it is used. A folder is taken as it is."""
    if path.is_dir():
        yield path
        return
    name = path.name.removesuffix(SUFFIX)
    with TemporaryDirectory(prefix="vigneron-") as place:
        folder = Path(place).resolve() / (name if _is_run_name(name) else "runs")
        folder.mkdir()
        _unpack(path, folder)
        try:
            yield folder
        except UserError as error:
            if str(folder) not in str(error):
                raise
            raise UserError(str(error).replace(str(folder), str(path))) from error


@contextmanager
def archives_unpacked(words: Sequence[str]) -> Iterator[list[str]]:
    """The words of a command, with a folder in the place of each archive."""
    with ExitStack() as stack:
        yield [
            str(stack.enter_context(unpacked(user_path(word)))) if word.endswith(SUFFIX) and "=" not in word else word
            for word in words
        ]


def _unpack(file: Path, folder: Path) -> None:
    try:
        with open_regular(file) as packed, (folder.parent / ".tar").open("w+b") as plain:
            _decompress(packed, plain)
            plain.seek(0)
            with tarfile.open(fileobj=plain, mode="r|") as tar:  # a stream: no member can point backwards
                _extract(tar, file, folder)
    except OSError as error:
        raise UserError(f"cannot read '{file}': {error.strerror or error}") from error
    # RecursionError: a chain of headers; ValueError: numbers and names that are none
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read '{file}': it is damaged, or not a {SUFFIX} file") from error
    if not any(folder.iterdir()):
        raise UserError(f"cannot read '{file}': it holds no runs")


def _decompress(packed: IO[bytes], plain: IO[bytes]) -> None:
    xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_LIMIT)
    while not xz.eof:
        more = packed.read(CHUNK) if xz.needs_input else b""
        if xz.needs_input and not more:
            raise EOFError("truncated")
        plain.write(xz.decompress(more, CHUNK))
        if plain.tell() > LARGEST:
            raise UserError(f"cannot read '{packed.name}': it holds more than {LARGEST // 2**20} MiB")
    if xz.unused_data or packed.read(1):
        raise EOFError("bytes after the end")


def _extract(tar: tarfile.TarFile, file: Path, folder: Path) -> None:
    """Only plain files `RUN/NAME` are written, each of them once."""
    for number, member in enumerate(tar):
        if number >= MOST_FILES:
            raise UserError(f"cannot read '{file}': it holds more than {MOST_FILES} files")
        if member.isdir():
            continue
        run, _, name = member.name.partition("/")
        if not member.isreg() or member.issparse() or name not in PACKED or not _is_run_name(run):
            raise UserError(f"cannot read '{file}': {member.name!r} is not a log of a run")
        if (folder / run / name).exists():
            raise UserError(f"cannot read '{file}': {member.name!r} is in it twice")
        (folder / run).mkdir(exist_ok=True)
        source = tar.extractfile(member)
        assert source is not None  # of a regular file it is there
        with (folder / run / name).open("xb") as into:
            while chunk := source.read(CHUNK):
                into.write(chunk)
            if into.tell() != member.size:
                raise EOFError("truncated")


def _is_run_name(name: str) -> bool:
    try:
        check_name(name)
    except UserError:
        return False
    return True
