"""Hashes of rows: by them duplicates are found, and rows that changed since a checkpoint."""

import json
from hashlib import sha256
from typing import Any

import numpy as np

from vigneron.data.prompts import Row
from vigneron.text import nfc

DIGEST = 16
"""Bytes of a row's hash."""
RECORDED, RECORD_BYTES = 100_000, 4
"""The largest number of rows whose hashes a checkpoint keeps one by one, and how much of each."""
PIECE = 2**20
"""Rows whose hashes are copied together."""
SORTED = 4 * 2**20
"""Rows whose hashes are sorted together: a limit of memory."""

canonical = json.JSONEncoder(sort_keys=True).encode
unescaped = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def digest_of(row: Row) -> bytes:
    return digest_of_line(canonical(row).encode())


def digest_of_line(line: bytes) -> bytes:
    return sha256(line).digest()[:DIGEST]


def prompt_digest(row: Row) -> bytes:
    """Equal for the composed and the decomposed form of a prompt, é of one or of two code points."""
    prompt = row.get("prompt")
    text = f'"{prompt}' if isinstance(prompt, str) else unescaped(prompt)
    return digest_of_line(nfc(text).encode("utf-8", "surrogatepass"))


def as_digests(data: Any) -> np.ndarray:
    """Bytes as one row for each hash."""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, DIGEST)


def record_of(digests: np.ndarray, kept: np.ndarray | None = None) -> str:
    """What a checkpoint stores of rows: a short hash of each, by which changed rows are found; of many rows one hash.
    `kept`: the indices of the rows; None: all."""
    count = len(digests) if kept is None else len(kept)
    pieces = (
        digests[at : at + PIECE] if kept is None else digests[kept[at : at + PIECE]] for at in range(0, count, PIECE)
    )
    if count <= RECORDED:
        return "".join(row[:RECORD_BYTES].tobytes().hex() for piece in pieces for row in piece)
    whole = sha256()
    for piece in pieces:
        whole.update(piece.tobytes())
    return f"{count} rows, sha256 {whole.hexdigest()}"


def repeated(digests: np.ndarray, among: np.ndarray) -> list[tuple[int, int]]:
    """(index, index of the first with the same hash) of all but the first, of the rows for which `among` is true."""
    pairs: list[tuple[int, int]] = []
    parts = min(256, 1 + len(digests) // SORTED)
    for part in range(parts):  # by the first byte
        rows = np.flatnonzero(among & (digests[:, 0] % parts == part))
        short = np.ascontiguousarray(digests[rows, :8]).view(np.uint64).ravel()
        order = np.argsort(short, kind="stable")
        same = np.flatnonzero(short[order[1:]] == short[order[:-1]])
        first: dict[bytes, int] = {}
        for at in np.sort(rows[order[np.union1d(same, same + 1)]]).tolist():
            before = first.setdefault(digests[at].tobytes(), at)
            if before != at:
                pairs.append((at, before))
    return sorted(pairs)
