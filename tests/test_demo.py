"""The demo itself, with the real model: minutes, so `make test-slow`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# The learning rate is constant, so these are the first steps of the demo's own run.
STEPS = 8


@pytest.mark.slow
def test_the_demo_raises_held_out_exact_match_by_at_least_0_30(tmp_path: Path) -> None:
    """As early as in its eighth step of fourteen, without the evaluation between."""
    command = [sys.executable, "-m", "vigneron", "demo", f"steps={STEPS}", f"eval_every={STEPS}"]
    done = subprocess.run([*command, "--runs", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (tmp_path / "demo-pgsrm" / "metrics.jsonl").read_text().splitlines()]
    scores = [record["eval/exact_match"] for record in metrics if "eval/exact_match" in record]
    assert scores[-1] - scores[0] >= 0.30
    assert (tmp_path / "demo-pgsrm" / "report.html").is_file()
    assert f"{scores[-1]:.2f}" in done.stdout
