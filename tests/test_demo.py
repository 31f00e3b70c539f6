"""The demo's recipe with the real model: minutes, so `make test-slow`. `cli/test_verbs.py` has its command."""

import json
from pathlib import Path

import pytest

from support.command_line import vigneron

pytestmark = pytest.mark.slow
# The learning rate is constant, so these are the first steps of the demo's own run.
STEPS = 8


def test_the_demo_raises_held_out_exact_match_by_at_least_0_30(tmp_path: Path) -> None:
    """Its recipe does, as early as in its eighth step of fourteen, without the evaluation between."""
    overrides = (f"steps={STEPS}", f"eval_every={STEPS}")
    done = vigneron("train", "demo", *overrides, "--name", "demo", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    metrics = [json.loads(line) for line in (tmp_path / "demo" / "metrics.jsonl").read_text().splitlines()]
    scores = [record["eval/exact_match"] for record in metrics if "eval/exact_match" in record]
    assert scores[-1] - scores[0] >= 0.30
