"""Without the package, or with a version that has no environments of this kind: one line that says what to install."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from vigneron.config import PythonEnvironmentConfig
from vigneron.environments import verifiers_adapter, verifiers_package
from vigneron.environments.build import check_environment
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


def test_the_command_that_writes_rows_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    verifiers_package._package.cache_clear()
    with pytest.raises(SystemExit, match="2"):
        verifiers_adapter.main(["wordle", "--out", str(tmp_path / "out")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: environment: the package verifiers is not installed")


def test_a_run_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    verifiers_package._package.cache_clear()
    verifiers_package._loaded.cache_clear()
    adapter = "vigneron.environments.verifiers_adapter:VerifiersEnvironment"
    config = PythonEnvironmentConfig.model_validate({"kind": "python", "class": adapter, "options": {"env": "wordle"}})
    with pytest.raises(UserError, match="the package verifiers is not installed"):
        check_environment(config)
