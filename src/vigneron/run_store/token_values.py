"""Values of each token of a sample, in a table of samples.sqlite: what `vigneron view` colours tokens by.

They are kept of some samples of some steps: the file stays small, and training does not wait.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEPS = 200
"""Of a run, about evenly spread: all of a shorter run."""
SAMPLES = 16
"""Of a step, the first ones: whole groups, where groups are smaller."""
TOKENS = 512
"""Of a sample, the first ones."""
NAMES = ("logprob", "advantage", "entropy", "ratio", "kl")
LARGEST_HALF = 65504.0
LARGEST = 2**22
"""Bytes of a record in the clear."""


@dataclass(frozen=True)
class TokenValues:
    """`pieces` are the tokens' texts; each list of `values` has one for each token, None where there is none."""

    pieces: Sequence[str]
    trained: Sequence[bool]
    values: Mapping[str, Sequence[float | None]]
    left_out: int = 0
    """Tokens behind the last one here."""


def is_due(step: int, steps: int) -> bool:
    """Whether a step's token values are kept."""
    return step in (1, steps) or step % max(1, steps // STEPS) == 0


def pack(tokens: TokenValues) -> bytes:
    """A line of JSON, then the values as half-precision floats: three digits are more than a colour shows."""
    record = {
        "pieces": tokens.pieces,
        "trained": "".join("1" if one else "0" for one in tokens.trained),
        "names": list(tokens.values),
        "left_out": tokens.left_out,
    }
    head = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    numbers = [_half(value) for values in tokens.values.values() for value in values]
    return zlib.compress(head + b"\n" + struct.pack(f"<{len(numbers)}e", *numbers), 1)


def unpack(blob: bytes) -> TokenValues:
    """Raises ValueError, LookupError or TypeError where the record is damaged."""
    try:
        text = zlib.decompressobj().decompress(blob, LARGEST)
        head, _, packed = text.partition(b"\n")
        record: dict[str, Any] = json.loads(head)
        pieces = [str(piece) for piece in record["pieces"]]
        numbers = struct.unpack(f"<{len(record['names']) * len(pieces)}e", packed)
    except (zlib.error, struct.error) as error:
        raise ValueError(f"token values: {error}") from error
    trained = [one == "1" for one in record["trained"]]
    if len(trained) != len(pieces):
        raise ValueError("token values: the lists differ in length")
    rows = [numbers[start : start + len(pieces)] for start in range(0, len(numbers), len(pieces) or 1)]
    values = {
        str(name): [value if math.isfinite(value) else None for value in row]
        for name, row in zip(record["names"], rows, strict=False)
    }
    return TokenValues(pieces, trained, values, int(record["left_out"]))


def _half(value: float | None) -> float:
    return math.nan if value is None else min(max(value, -LARGEST_HALF), LARGEST_HALF)
