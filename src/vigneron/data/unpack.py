"""Compressed files and `.json` as JSON Lines, .csv or .tsv in the cache folder, so that rows can be read one by one."""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from vigneron.data.lines import BOM, DECODER, LONGEST_LINE, check_encoding
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder

PIECE = 2**20
SPACE = " \t\r\n"


def unpacked(path: Path) -> Path:
    """The file's rows as .jsonl, or as .csv or .tsv. It is written once for each version of the file."""
    stat = path.stat()
    key = sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:24]
    suffix = next((kind for kind in (".csv", ".tsv") if path.name.lower().endswith(f"{kind}.gz")), ".jsonl")
    target = cache_folder() / "data" / f"{key}{suffix}"
    if target.is_file():
        return target
    draft = target.with_name(f".{key}.{os.getpid()}.draft")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for piece in _lines(path):
                file.write(piece)
        draft.replace(target)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is not complete, or not a .gz file"
        raise UserError(f"data: cannot unpack '{path}': {reason}") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        first = file.read(PIECE)
        check_encoding(first, str(path))
        if path.name.lower().endswith((".csv.gz", ".tsv.gz")):
            while first:
                yield first
                first = file.read(PIECE)
            return
        if first.removeprefix(BOM).lstrip()[:1] == b"[":
            for row in _elements(first, file, path):  # type: ignore[arg-type]
                yield json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            return
        line, _, rest = first.removeprefix(BOM).lstrip().partition(b"\n")
        if line.startswith(b"{") and rest and not _is_json(line):
            raise UserError(
                f"data: '{path}' is one JSON object, or its first line is not JSON: give a list of objects, or one "
                "object in each line"
            )
        while first:  # JSON Lines
            yield first
            first = file.read(PIECE)


def _is_json(line: bytes) -> bool:
    try:
        DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _elements(first: bytes, file: IO[bytes], path: Path) -> Iterator[Any]:
    """The elements of a JSON array, without holding all of them in memory."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    try:
        text, at, number = decode(first).lstrip(SPACE), 1, 0
        ended = False
        while True:
            while at < len(text) and text[at] in (SPACE + "," if number else SPACE):
                at += 1
            if at < len(text) and text[at] == "]":
                if (text[at + 1 :] + decode(file.read(PIECE))).strip(SPACE):
                    raise UserError(f"data: '{path}': text follows the list of rows: give one list, or JSON Lines")
                return
            try:
                if at >= len(text):
                    raise json.JSONDecodeError("the list does not end", text, at)
                row, stop = DECODER.raw_decode(text, at)
                if stop == len(text) and not ended:  # a number may go on
                    raise json.JSONDecodeError("", text, at)
            except json.JSONDecodeError as error:
                where = f"data: '{path}', row {number + 1}"
                if ended:
                    raise UserError(f"{where} is not JSON: {error.msg}") from error
                if len(text) - at > 4 * LONGEST_LINE:
                    raise UserError(f"{where} is not JSON, or longer than {LONGEST_LINE} characters") from error
                piece = file.read(max(PIECE, len(text) - at))
                ended = not piece
                text, at = text[at:] + decode(piece, final=ended), 0
                continue
            except (ValueError, RecursionError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else error
                raise UserError(f"data: '{path}', row {number + 1} cannot be read: {reason}") from error
            number, at = number + 1, stop
            if not isinstance(row, dict):
                raise UserError(f"data: '{path}', row {number} is not a JSON object")
            yield row
    except UnicodeDecodeError as error:
        raise UserError(f"data: '{path}' is not UTF-8 text ({error.reason})") from error
