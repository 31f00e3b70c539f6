"""The commit of a user's repository, read from git's files, wherever a run is started."""

import subprocess
from pathlib import Path

import pytest

from vigneron.run_store.code_version import code_version


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_of_a_repository_its_worktree_and_packed_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "inside").mkdir(parents=True)
    git(own, "init", "-q")
    git(own, "commit", "-q", "--allow-empty", "-m", "one")
    commit = git(own, "rev-parse", "HEAD")[:12]
    monkeypatch.chdir(own / "inside")
    assert code_version()["commit"] == commit
    git(own, "pack-refs", "--all")
    assert code_version()["commit"] == commit
    git(own, "worktree", "add", "-q", str(other))
    monkeypatch.chdir(other)
    assert code_version()["commit"] == commit
    (other / ".git").write_text("gitdir: nowhere")
    assert "commit" not in code_version()


def test_a_deleted_folder_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "commit" not in code_version()
