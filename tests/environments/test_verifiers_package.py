"""Without the package, or with a version that has no environments of this kind: one line that says what to install."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def test_calls_within_reasoning_are_not_made() -> None:
    known = verifiers_adapter._format(SimpleNamespace(env_id="sums", tool_defs=["add"]), "hermes")
    assert known is not None
    call = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'
    for raw in (f"<think>{call}", f"<think>{call}</think>42", f"{call}</think>42"):
        assert known.parse(raw).calls == ()
    assert [made.name for made in known.parse(f"<think>Sum.</think>{call}").calls] == ["add"]


class _Client:
    def __init__(self) -> None:
        self.questions: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()


class _Asking:
    """As an environment of the package with one turn: it asks with its prompt and more."""

    env_id, tool_defs = "asking", ()

    def __init__(self, *more: str) -> None:
        self.more = [{"role": "user", "content": text} for text in more]

    async def run_rollout(self, row: Any, client: _Client, *_: Any) -> Any:
        client.questions.put_nowait([*row["prompt"], *self.more])
        return {"reward": float(await client.answers.get() is not None)}


def test_an_environment_that_adds_to_the_prompt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_adapter, "client_class", lambda: _Client)
    prompt = [{"role": "user", "content": "?"}]
    turn = {"role": "assistant", "content": "yes"}
    for more in ((), ("Be brief.",)):
        monkeypatch.setattr(verifiers_adapter, "load", lambda env, args, more=more: _Asking(*more))
        made = verifiers_adapter.VerifiersEnvironment({"prompt": prompt}, 0, env="asking")
        if not more:
            assert asyncio.run(made.reply([*prompt, turn])).reward == 1.0
            continue
        with pytest.raises(ValueError, match="'asking' adds messages before the first turn"):
            asyncio.run(made.reply([*prompt, turn]))
