"""The files that a model's weights are loaded from, and a hash of the tensors in them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from vigneron.errors import UserError, reason
from vigneron.files import parse_json
from vigneron.policy.bundled import BUNDLED_MODELS
from vigneron.policy.model_names import model_source
from vigneron.threads import DaemonPool, cores

# In transformers' order. An index names the files of a model in several parts.
NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
CHUNK = 2**24
MOST_THREADS = 16
"""One core computes SHA-256 at 1.3 to 2 GB/s; hashlib releases the interpreter's lock."""


def weight_files(name: str) -> list[Path]:
    """The files of a model that is on this machine, in their order; empty if there are none with the usual names."""
    source = model_source(name)
    for file_name in NAMES:
        if (file := _found(source, file_name)) is None:
            continue
        if not file_name.endswith(".json"):
            return [file]
        try:
            parts = sorted({str(part) for part in parse_json(file.read_bytes())["weight_map"].values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading the model explains
            return []
        files = [_found(source, part) for part in parts]
        return [part for part in files if part is not None] if all(files) else []
    return []


def _found(source: str, name: str) -> Path | None:
    if Path(source).is_dir():
        file = Path(source) / name
        return file if file.is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(source, name, local_files_only=True, _raise_exceptions_for_missing_entries=False)
    except Exception:  # not on this machine, or a damaged cache: loading the model explains
        return None
    return None if found is None else Path(found)


def readable_weights(name: str) -> str:
    """The size of a model's files, as `3.1 GB`; empty if they are not known yet."""
    size = 0 if name in BUNDLED_MODELS else sum(file.stat().st_size for file in weight_files(name))
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else ""


class Piece(NamedTuple):
    """Bytes of a file that are hashed together."""

    label: bytes
    file: Path
    start: int
    end: int


def hash_in_background(files: Sequence[Path]) -> "Future[str]":
    """SHA-256 of the names, dtypes, shapes and bytes of all tensors, sorted by name: the same however they are spread
    over files. Pickled files are hashed whole."""
    return DaemonPool(1, "identity").submit(hash_of_files, files)


def hash_of_files(files: Sequence[Path]) -> str:
    try:
        pieces = sorted(piece for file in files for piece in _pieces(file))
        pool = DaemonPool(min(MOST_THREADS, cores()), "hash")
        digests = [pool.submit(_digest, piece) for piece in pieces]
        whole = hashlib.sha256()
        for piece, digest in zip(pieces, digests, strict=True):
            whole.update(piece.label)
            whole.update(digest.result())
        return whole.hexdigest()
    except (OSError, ValueError) as error:
        raise UserError(f"model: cannot read its weights to hash them: {reason(error)}") from error


def _pieces(file: Path) -> Iterator[Piece]:
    """Of every tensor of a file, with its description and the number of the piece as the label."""
    if file.suffix != ".safetensors":
        yield from _cut(file.name, file, 0, file.stat().st_size)
        return
    with file.open("rb") as opened:
        length = min(int.from_bytes(opened.read(8), "little"), file.stat().st_size)
        header = parse_json(opened.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in tensor["data_offsets"])
            yield from _cut(json.dumps([name, tensor["dtype"], tensor["shape"]]), file, start, end)


def _cut(label: str, file: Path, start: int, end: int) -> Iterator[Piece]:
    for number, at in enumerate(range(start, max(end, start + 1), CHUNK)):
        yield Piece(f"{label}\0{number:08d}\0".encode(), file, at, min(at + CHUNK, end))


def _digest(piece: Piece) -> bytes:
    with piece.file.open("rb") as opened:
        opened.seek(piece.start)
        return hashlib.sha256(opened.read(piece.end - piece.start)).digest()
