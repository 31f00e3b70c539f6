"""A checkpoint's files against its manifest. What is read is listed there, lies in the folder, and is what was written.

A checkpoint may come from somebody else, with a manifest that fits: the hashes say that it is whole, not that it is
good. So what is read of it is safetensors and JSON, and whatever is wrong with those is one line.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import torch

from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, sha256_of

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 2**22
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
TENSORS, SCALARS, MEMORY = "state/tensors.safetensors", "state/scalars.json", "state/memory.jsonl"


def fault_of(path: Path, *, weights_only: bool = False) -> str | None:
    """What is wrong with a checkpoint's files, in a few words; None where every one is what was written."""
    try:
        with (path / MANIFEST).open("rb") as file:
            manifest = parse_json(file.read(LARGEST_MANIFEST))
    except (OSError, ValueError):
        return f"{MANIFEST} cannot be read"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} is no list of files"
    if not set(WEIGHTS) & set(manifest):
        return f"{MANIFEST} names no weights"
    there = [name for name in WEIGHTS if (path / name).exists()]
    for name in dict.fromkeys([*manifest, *there, *(() if weights_only else (TENSORS, SCALARS))]):
        if weights_only and name.startswith("state/"):
            continue
        if not _lies_within(path, name):
            return f"{name} is not a file of its own"
        if not (path / name).exists():
            return f"{name} is missing"
        try:
            same = sha256_of(path / name) == manifest.get(name)
        except OSError:
            return f"{name} cannot be read"
        if not same:
            return f"{name} is not what was written"
    return None


def _lies_within(path: Path, name: str) -> bool:
    """A file, and not a link to somewhere else."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        return False
    try:
        file = path / name
        return not file.exists() or (file.is_file() and file.resolve().is_relative_to(path.resolve()))
    except (OSError, ValueError, RuntimeError):  # no name of a file; links in a circle
        return False


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Around everything that is made of a checkpoint's files."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the edge to somebody's files: they can be broken in any way
        raise UserError(f"the checkpoint '{path}' is damaged: {first_line(error)}") from error
