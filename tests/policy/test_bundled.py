"""The packages that carry weights."""

import os
from pathlib import Path

import pytest

from vigneron.errors import UserError
from vigneron.policy import bundled


def test_weights_are_read_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, read = tmp_path / "weights", []
    weights.write_bytes(b"some")

    def hash_of(path: Path) -> str:
        read.append(path.read_bytes())
        return read[-1].decode()

    monkeypatch.setattr(bundled, "sha256_of", hash_of)
    monkeypatch.setattr(bundled, "PACKAGES", {"package": "some"})
    for _ in range(2):
        assert bundled.check_bundled(weights, "package", "model") == "some"
    weights.write_bytes(b"more")
    os.utime(weights, ns=(0, 0))
    with pytest.raises(UserError, match="do not have the expected SHA-256"):
        bundled.check_bundled(weights, "package", "model")
    assert read == [b"some", b"more"]
