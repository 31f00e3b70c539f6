"""The start of a compiled run on a GPU: its phases, and that a second run of the same shapes compiles nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.command_line import write_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_second_compiled_run_finds_the_code_in_the_cache(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_folder, steps=3)
    changes = ["model.device=cuda", "model.compile=true"]
    cache = tmp_path / "cache"
    env = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    kept: list[set[Path]] = []
    for name in ("cold", "warm"):
        options = ["--runs", str(tmp_path), "--name", name]
        command = [sys.executable, "-m", "vigneron", "train", str(recipe), *changes, *options]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=300, env=env | {"VIGNERON_CACHE": str(cache)}
        ).stdout
        start = json.loads((tmp_path / name / "timings.jsonl").read_text().splitlines()[0])["start"]
        print(name, start)
        assert {"import", "load the model", "compile", "capture"} <= set(start)
        assert "compiling layers" in shown
        kept.append({file for kind in ("fxgraph", "aotautograd") for file in (cache / "compiled" / kind).rglob("*")})
    assert kept[0], "torch wrote its code there"
    assert kept[1] == kept[0], "and the second run added nothing"
