"""The sandbox and the rubric converters are imported only where a rubric uses them, `datasets` only where data is no
JSON, torch only for a model."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LAZY = ("vigneron.rewards.graders", "vigneron.rubric.formats", "datasets", "pyarrow")
PYTHON_REWARD = """
import vigneron.api
from vigneron.config import PythonRewardConfig
from vigneron.data.sources import read_rows
from vigneron.rewards.build import build_reward

build_reward(PythonRewardConfig(kind="python", function="own:length"), lambda **columns: [])
assert read_rows("a.jsonl") == read_rows("a.json")
"""
PRINT_LOADED = f"import sys; print([name for name in sys.modules if name.startswith({LAZY})])"


def test_a_python_reward_on_json_rows_imports_no_grader_converter_or_datasets(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def length(completions, **columns):\n    return [len(c) for c in completions]\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (tmp_path / "a.json").write_text('[{"prompt": "a", "answer": "b"}]')
    command = [sys.executable, "-c", PYTHON_REWARD + PRINT_LOADED]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")


def test_the_first_part_of_validate_imports_neither_torch_nor_transformers() -> None:
    loaded = "import sys; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    command = [sys.executable, "-c", f"import vigneron.commands.validate_data; {loaded}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")
