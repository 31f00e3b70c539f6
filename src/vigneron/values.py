"""Plain values: number and bool checks, bytes in GB, nested mappings as dotted keys, even splits of a sequence."""

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

ABSENT = "–"
GB = 2**30
"""Of memory, in options, tables and messages: as `nvidia-smi` and torch count it."""


LARGEST_FLOAT32 = 3.4028234663852886e38


def is_number(value: Any) -> bool:
    """Whether a value is a finite int or float; a bool is not a number, nor is an int too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def short(value: float) -> str:
    """Three decimals; a smaller number in scientific notation."""
    return f"{value:.3f}" if value != value or value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def memory_text(size: float) -> str:
    """Bytes of memory as `3.1 GB`."""
    return f"{size / GB:.1f} GB"


def yes_or_no(value: Any) -> bool | None:
    """A bool, which is text in CSV; None: not given."""
    return None if value in (None, "") else str(value).lower() in ("true", "1", "1.0")


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings under dotted keys, such as `optimizer.actor_lr`. An empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differing_keys(flat: Sequence[Mapping[str, Any]], absent: Any = ABSENT) -> dict[str, list[Any]]:
    """The keys in which flat mappings differ, with the value in each; `absent` where a mapping lacks the key."""
    keys = dict.fromkeys(key for mapping in flat for key in mapping)
    values = {key: [mapping.get(key, absent) for mapping in flat] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def even_ranges(count: int, parts: int) -> list[range]:
    """0 … count − 1 in `parts` consecutive ranges, as even as possible; none is empty if count ≥ parts."""
    edges = [count * part // parts for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]
