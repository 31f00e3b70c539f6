"""What a node is: its name, and the versions that must be the same everywhere.

Sent to nodes as it stands (they may not have Vigneron): nothing but the standard library is imported.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
from pathlib import Path

SAME = ("python", "vigneron", "torch", "transformers")


def node_facts() -> dict[str, str | None]:
    """Versions by package, None where it is not installed, and the host's name."""
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "vigneron": _own_version(),
        **{name: _version(name) for name in ("torch", "transformers")},
    }


def difference(here: dict[str, str | None], there: dict[str, str | None]) -> str | None:
    """The first package that is not the same, with both versions."""
    for name in SAME:
        if here[name] != there[name]:
            return f"{name} {there[name] or '(not installed)'} there, {here[name] or '(not installed)'} here"
    return None


def _version(name: str) -> str | None:
    """Without the build, as in `+cpu`: a node without a GPU may have another one."""
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_version() -> str | None:
    """With a digest of the sources: two checkouts of one version may differ."""
    spec = importlib.util.find_spec("vigneron")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return f"{_version('vigneron') or ''} (sources {digest.hexdigest()[:8]})".strip()
