"""A checkout stays small: logs are packed, pictures are compressed."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LARGEST = 4_500_000
"""Bytes of all tracked files but code and pages: figures, images, logs and data."""


def test_a_checkout_is_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if not name.endswith((".py", ".md"))]
    sizes = {name: (ROOT / name).stat().st_size for name in names if (ROOT / name).is_file()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    assert sum(sizes.values()) < LARGEST, f"the largest files are {', '.join(largest)}"
