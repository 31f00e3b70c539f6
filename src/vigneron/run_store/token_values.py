"""Values of each token of a sample, in a table of samples.sqlite: what `vigneron view` colours tokens by.

They are kept of some samples of some steps: the file stays small, and training does not wait.
"""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.values import is_number

STEPS = 200
"""Of a run, about evenly spread: all of a shorter run."""
SAMPLES = 16
"""Of a step, the first ones: whole groups, where groups are smaller."""
TOKENS = 512
"""Of a sample, the first ones."""
NAMES = ("logprob", "advantage", "entropy", "ratio", "kl")
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
    record = {
        "pieces": tokens.pieces,
        "trained": "".join("1" if one else "0" for one in tokens.trained),
        "values": {name: [_short(value) for value in values] for name, values in tokens.values.items()},
        "left_out": tokens.left_out,
    }
    return zlib.compress(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"), 1)


def unpack(blob: bytes) -> TokenValues:
    """Raises ValueError, LookupError or TypeError where the record is damaged."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(blob, LARGEST)
    except zlib.error as error:
        raise ValueError(f"token values: {error}") from error
    record: dict[str, Any] = json.loads(text)
    pieces = [str(piece) for piece in record["pieces"]]
    trained = [one == "1" for one in record["trained"]]
    values = {
        name: [float(value) if is_number(value) else None for value in record["values"][name]]
        for name in NAMES
        if name in record["values"]
    }
    if {len(trained), *map(len, values.values())} != {len(pieces)}:
        raise ValueError("token values: the lists differ in length")
    return TokenValues(pieces, trained, values, int(record["left_out"]))


def _short(value: float | None) -> float | None:
    """Four digits are more than a colour shows."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None
