"""Compiled code is kept in Vigneron's cache folder, where the next process finds it."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from support import fault_runs
from vigneron.policy.compiling import CACHE, keep_compiled_code, set_compiling
from vigneron.timing import phase, reporting_phases, take_start


def compile_once(result: str) -> None:
    """In a process of its own: what it compiled or took from the cache."""
    told: list[str | None] = []
    with reporting_phases(told.append):
        set_compiling(True)
        x = torch.arange(64.0, requires_grad=True)
        with phase("update"):
            torch.compile(lambda x: (x * 3).sin().sum())(x).backward()
        start = take_start()
    caches = {**counters["aot_autograd"], **counters["inductor"]}
    told_of_caches = {name: count for name, count in caches.items() if "_cache_" in name}
    found = {"told": told, "timed": list(start), "gradient": x.grad.tolist(), "caches": told_of_caches}
    Path(result).write_text(json.dumps(found))


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, "")  # restored at the end, whatever is set
    del os.environ[CACHE]


@pytest.mark.usefixtures("unset")
def test_torch_is_given_a_folder_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    keep_compiled_code()
    assert os.environ[CACHE] == str(tmp_path / "cache" / "compiled")
    assert list((tmp_path / "cache" / "compiled").iterdir()) == []
    monkeypatch.setenv(CACHE, "chosen")
    keep_compiled_code()
    assert os.environ[CACHE] == "chosen"


@pytest.mark.usefixtures("unset")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "file"))
    keep_compiled_code()
    assert CACHE not in os.environ


@pytest.mark.slow
@pytest.mark.usefixtures("unset")
def test_a_second_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where torch's own folder would be
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else processes are started for one kernel
    results = [tmp_path / f"{name}.json" for name in ("cold", "warm")]
    assert [fault_runs.exit_code(compile_once, str(result)) for result in results] == [0, 0]
    cold, warm = (json.loads(result.read_text()) for result in results)
    assert cold["caches"] == {"autograd_cache_miss": 1, "autograd_cache_saved": 1, "fxgraph_cache_miss": 2}
    assert warm["caches"] == {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2}
    assert (tmp_path / "compiled" / "fxgraph").is_dir()
    assert cold["gradient"] == warm["gradient"]
    assert cold["told"][:3] == ["update", "compile", "update"]
    assert cold["told"][-1] is None
    assert warm["timed"] == ["update", "compile", "other", "total"]
