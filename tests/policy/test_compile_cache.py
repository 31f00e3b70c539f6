"""Compiled code is kept in Vigneron's cache folder, where the next process finds it."""

import json
import os
from pathlib import Path

import pytest

from support.tiny_runs import run_python
from vigneron.policy.compiling import CACHE, keep_compiled_code

COMPILE = """
import json, torch
from torch._dynamo.utils import counters
from vigneron.policy.compiling import set_compiling
from vigneron.timing import phase, reporting_phases, take_start

told = []
with reporting_phases(told.append):
    set_compiling(True)
    x = torch.arange(64.0, requires_grad=True)
    with phase("update"):
        torch.compile(lambda x: (x * 3).sin().sum())(x).backward()
    start = take_start()
caches = {**counters["aot_autograd"], **counters["inductor"]}
print(json.dumps({
    "told": told, "timed": list(start), "gradient": x.grad.tolist(),
    "caches": {name: count for name, count in caches.items() if "_cache_" in name},
}))
"""


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
    cold, warm = (json.loads(run_python(COMPILE).stdout) for _ in range(2))
    assert cold["caches"] == {"autograd_cache_miss": 1, "autograd_cache_saved": 1, "fxgraph_cache_miss": 2}
    assert warm["caches"] == {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2}
    assert (tmp_path / "compiled" / "fxgraph").is_dir()
    assert cold["gradient"] == warm["gradient"]
    assert cold["told"][:3] == ["update", "compile", "update"]
    assert cold["told"][-1] is None
    assert warm["timed"] == ["update", "compile", "other", "total"]
