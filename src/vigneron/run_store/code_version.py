"""The version of the code that trained a run: Vigneron's, and the commits of its checkout and of the user's."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vigneron.files import read_regular

LARGEST = 2**22
SHOWN = 12
"""Digits of a commit."""


def code_version() -> dict[str, str]:
    """`vigneron`; `vigneron_commit`, where it runs from a checkout; `commit`, where the current folder is in another
    repository. Read from git's files: changes that were not committed are not seen."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    own = _commit(checkout) if package == checkout / "src" / "vigneron" else None
    root = _repository()
    user = _commit(root) if root is not None and root != checkout else None
    return {"vigneron": installed_version(), **_given("vigneron_commit", own), **_given("commit", user)}


def _repository() -> Path | None:
    """The repository that the current folder is in; None where it is in none, is deleted, or may not be looked at."""
    try:
        folder = Path.cwd().resolve()
        return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    except OSError:
        return None


def installed_version() -> str:
    try:
        return version("vigneron")
    except PackageNotFoundError:  # run from source
        return "from source"


def _given(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}


def _commit(root: Path) -> str | None:
    """What HEAD of a repository is; None where it cannot be read."""
    try:
        git = root / ".git"
        if git.is_file():  # a worktree or a submodule
            git = root / _text(git).removeprefix("gitdir: ")
        shared = git / _text(git / "commondir") if (git / "commondir").is_file() else git
        head = _text(git / "HEAD")
        if not head.startswith("ref: "):
            return _checked(head)
        name = head.removeprefix("ref: ")
        for place in (git, shared):
            if (place / name).is_file():
                return _checked(_text(place / name))
        packed = (line.split(" ") for line in _text(shared / "packed-refs").splitlines())
        return next((_checked(line[0]) for line in packed if line[1:] == [name]), None)
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str:
    return read_regular(path, LARGEST).decode().strip()


def _checked(commit: str) -> str | None:
    return commit[:SHOWN] if len(commit) >= 40 and all(digit in "0123456789abcdef" for digit in commit) else None
