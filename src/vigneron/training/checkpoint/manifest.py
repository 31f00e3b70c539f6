"""Check a checkpoint's files against its manifest: each is listed, lies inside the folder and has the recorded hash.

The hashes detect damage, not tampering: a checkpoint from another person may come with a matching manifest. So only
safetensors and JSON are read, and every error in them becomes a one-line `UserError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import torch

from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, read_regular, sha256_of

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 2**22
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
TENSORS, SCALARS, MEMORY = "state/tensors.safetensors", "state/scalars.json", "state/memory.jsonl"


def fault_of(path: Path, *, weights_only: bool = False) -> str | None:
    """What is wrong with a checkpoint's files, in a few words; None if it is intact."""
    try:
        manifest = parse_json(read_regular(path / MANIFEST, MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return f"{MANIFEST} cannot be read"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} is not a list of files"
    if not set(WEIGHTS) & set(manifest):
        return f"{MANIFEST} lists no weights"
    present = [name for name in WEIGHTS if (path / name).exists()]
    for name in dict.fromkeys([*manifest, *present, *(() if weights_only else (TENSORS, SCALARS))]):
        if weights_only and name.startswith("state/"):
            continue
        if not _is_inside(path, name):
            return f"{name} is not a file inside the checkpoint"
        if not (path / name).exists():
            return f"{name} is missing"
        try:
            same = sha256_of(path / name) == manifest.get(name)
        except OSError:
            return f"{name} cannot be read"
        if not same:
            return f"{name} does not match its hash"
    return None


def _is_inside(path: Path, name: str) -> bool:
    """Whether it is a file of the folder, not a link to another place."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        return False
    try:
        file = path / name
        return not file.exists() or (file.is_file() and file.resolve().is_relative_to(path.resolve()))
    except (OSError, ValueError, RuntimeError):  # not a file name; a loop of links
        return False


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn errors in code that reads a checkpoint's files into a one-line `UserError`."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # untrusted files: they can be broken in any way
        raise UserError(f"the checkpoint '{path}' is damaged: {first_line(error)}") from error
