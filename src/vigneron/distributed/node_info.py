"""A node's host name and the package versions that must match on all nodes.

This module is pickled by value and sent to nodes that may lack Vigneron, so it imports only the standard library.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
from pathlib import Path

MUST_MATCH = ("python", "vigneron", "torch", "transformers")


def node_info() -> dict[str, str | None]:
    """Host name, process id, and the version of each package (None if it is not installed)."""
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "vigneron": _own_version(),
        **{name: _version(name) for name in ("torch", "transformers")},
    }


def version_mismatch(expected: dict[str, str | None], other: dict[str, str | None]) -> str | None:
    """The first package whose version differs, as in "torch 2.10 instead of 2.11"."""
    for name in MUST_MATCH:
        if expected[name] != other[name]:
            return f"{name} {other[name] or '(not installed)'} instead of {expected[name] or 'none'}"
    return None


def _version(name: str) -> str | None:
    """Without the build tag, such as `+cpu`: a node without a GPU may have another build."""
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_version() -> str | None:
    """The version with a digest of the sources: two checkouts of one version may differ."""
    spec = importlib.util.find_spec("vigneron")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return f"{_version('vigneron') or ''} (sources {digest.hexdigest()[:8]})".strip()
