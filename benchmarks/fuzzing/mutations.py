"""Mutations of valid input: values in a tree, text, bytes. All are determined by one random generator."""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

Path = tuple[Any, ...]

NASTY_TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\x1b[31mred\x1b[2J",
    "\u202etxt",
    "\u2028",
    "\ufeff",
    "\ud800",
    "é" * 3,
    "👩‍👩‍👧",
    "=1+cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "[red]x[/nope]",
    "$x_{$",
    "{{ 7 * 7 }}",
    "{% for i in range(99999999) %}x{% endfor %}",
    "{0.__class__.__mro__}",
    "{x:>99999999999}",
    "%s%n",
    "../../../../proc/version",
    "/proc/version",
    "/dev/zero",
    "~/.ssh/id_rsa",
    "~nobody-there/x",
    "http://user:secret@127.0.0.1:1/v1?key=secret",
    "http://[::1",
    "os:system",
    "nan",
    "1e999",
    "2024-13-45",
    "yes",
    "null",
    "a\nb: c",
    "line\r\nline",
    "x" * 100_000,
    "(a+)+$",
    "(" * 200,
)
NASTY_NUMBERS = (0, -0.0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, 5e-324, float("nan"), float("inf"), -1e-9)
NASTY_VALUES: tuple[Any, ...] = (
    *NASTY_TEXTS,
    *NASTY_NUMBERS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": ""},
    [None],
    {"a": []},
)


def changed_tree(value: Any, random: Random) -> Any:
    """A copy of a value with one to four changes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        value = _changed_at(value, random.choice(places), random, [at for at in places if at])
    return value


def _places(value: Any, path: Path = ()) -> "list[Path]":
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            found += _places(inner, (*path, place))
    return found


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _changed_at(value: Any, path: Path, random: Random, others: list[Path]) -> Any:
    if path:
        head, *rest = path
        copy = dict(value) if isinstance(value, dict) else list(value)
        if not rest and random.random() < 0.35:
            return _reshaped(copy, head, random)
        copy[head] = _changed_at(value[head], tuple(rest), random, []) if rest else _other(value[head], random)
        return copy
    if others and random.random() < 0.5:
        return _at(value, random.choice(others))
    return _other(value, random)


def _reshaped(copy: Any, key: Any, random: Random) -> Any:
    """Remove, add or rename an entry."""
    kind = random.randrange(4)
    if isinstance(copy, list):
        if kind == 0:
            del copy[key]
        elif kind == 1:
            copy.insert(key, copy[key])
        elif kind == 2:
            copy.reverse()
        else:
            copy *= random.choice((2, 50))
        return copy
    inner = copy.pop(key)
    if kind == 1:
        copy[f"{key}x"] = inner
    elif kind == 2:
        copy[random.choice((1, None, True, "", *NASTY_TEXTS))] = inner
    elif kind == 3:
        copy[key] = inner
        copy[str(key).upper()] = inner
    return copy


def _other(value: Any, random: Random) -> Any:
    kind = random.randrange(6)
    if kind == 0 and isinstance(value, str):
        at = random.randrange(len(value) + 1)
        return value[:at] + random.choice(NASTY_TEXTS) + value[at:]
    if kind == 1 and isinstance(value, int | float):
        return random.choice((-value, value * 10**9, 0.5, str(value), [value]))
    if kind == 2:
        return [value] if random.random() < 0.5 else {"kind": value, "name": value}
    if kind == 3:
        return nested(random.choice((3, 50, 2000)), random.choice(("list", "dict")))
    return random.choice(NASTY_VALUES)


def nested(depth: int, of: str) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if of == "list" else {"a": value}
    return value


def _lines(text: str, random: Random, change: Callable[[list[str], int], None]) -> str:
    lines = text.splitlines(keepends=True) or [""]
    change(lines, random.randrange(len(lines)))
    return "".join(lines)


def _insert(text: str, what: str, random: Random) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] + what + text[at:]


YAML_BITS = (
    "!!python/object/apply:os.system ['touch pwned']",
    "!!python/name:os.system",
    "!!binary aGk=",
    "!!set {a, b}",
    "!unknown x",
    "&a [*a]",
    "*nowhere",
    "<<: *a\n",
    "? [a, b]\n: c\n",
    "---\nsecond: document\n",
    "%YAML 9.9\n---\n",
    "\t",
    "'",
    '"',
    "|\n",
    "{",
    "[" * 3000,
    "- " * 3000,
    "1" * 5000,
    "0x" + "f" * 5000,
    "1:" * 3000 + "1",
    "# " + "c" * 100_000 + "\n",
)
BOMBS = (
    "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "m0: &m0 {k: 1}\n" + "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 30)),
)


def changed_text(text: str, random: Random) -> str:
    kind = random.randrange(9)
    if kind == 0:
        return text[: random.randrange(len(text) + 1)]
    if kind == 1:
        return _lines(text, random, lambda lines, at: lines.insert(at, lines[at]))
    if kind == 2:
        return _lines(text, random, lambda lines, at: lines.__delitem__(at))
    if kind == 3:
        return text.replace("\n", random.choice(("\r\n", "\r", "\u2028", "\x85", "\n\n")))
    if kind == 4:
        return _insert(text, random.choice(YAML_BITS), random)
    if kind == 5:
        return random.choice((text + "\n", "")) + random.choice(BOMBS)
    if kind == 6:
        return _lines(text, random, lambda lines, at: lines.__setitem__(at, " " * random.randrange(9) + lines[at]))
    if kind == 7:
        return text * random.choice((2, 20))
    return _insert(text, random.choice(NASTY_TEXTS), random)


def as_bytes(text: str, random: Random) -> bytes:
    """Mostly UTF-8; sometimes with a byte-order mark, or in another encoding."""
    encoding = random.choice(("utf-8",) * 12 + ("utf-8-sig", "utf-16", "utf-32", "latin-1"))
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def changed_bytes(content: bytes, random: Random) -> bytes:
    kind = random.randrange(7)
    if kind == 0:
        return content[: random.randrange(len(content) + 1)]
    if kind == 1:
        return garbage(random)
    if kind == 2:
        return content + garbage(random)
    if kind == 3:
        return b""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 8, 64))):
        if changed:
            changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def garbage(random: Random) -> bytes:
    return random.choice(
        (
            random.randbytes(random.choice((1, 8, 100, 5000))),
            b"\x00" * 1000,
            b"[" * 100_000,
            b'{"a":' * 20_000,
            b"\x80\x04\x95 pickled",
            b"\xff\xfe",
            b"PK\x03\x04",
            b"SQLite format 3\x00" + random.randbytes(200),
            b"null",
            b"NaN",
            b"1" * 5000,
        )
    )


def changed_json(content: bytes, random: Random) -> bytes:
    try:
        tree = json.loads(content)
    except ValueError:
        return changed_bytes(content, random)
    kind = random.randrange(5)
    if kind == 0:
        return changed_bytes(content, random)
    try:
        text = json.dumps(changed_tree(tree, random), indent=1 if kind == 1 else None)
    except RecursionError:
        return garbage(random)
    return as_bytes(changed_text(text, random) if kind == 2 else text, random)


def changed_safetensors(content: bytes, random: Random) -> bytes:
    """A safetensors file: change its JSON header, the header's length, or any byte."""
    kind = random.randrange(4)
    if len(content) < 8:
        return changed_bytes(content, random)
    (size,) = struct.unpack("<Q", content[:8])
    if kind == 0:
        return changed_bytes(content, random)
    if kind == 1:
        return struct.pack("<Q", random.choice((0, 1, size - 1, size + 1, len(content), 2**40, 2**63))) + content[8:]
    header = changed_json(content[8 : 8 + size], random)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]
