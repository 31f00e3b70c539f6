"""Without the package, or with a version that has no environments of this kind: one line that says what to install."""

import sys
from types import ModuleType

import pytest

from vigneron.environments import verifiers_package
from vigneron.errors import UserError


def package() -> object:
    return verifiers_package._package.__wrapped__()


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(UserError, match=r"verifiers is not installed .*: pip install 'vigneron\[verifiers\]'"):
        package()


def test_a_version_without_these_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = ModuleType("verifiers")
    newer.__version__ = "0.4.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verifiers", newer)
    with pytest.raises(
        UserError, match=r"verifiers 0.4.0 has no `load_environment`: pip install 'vigneron\[verifiers\]'"
    ):
        package()
