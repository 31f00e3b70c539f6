"""The demo itself, with the real model: minutes, so `make test-slow`."""

import json
from pathlib import Path

import pytest

from support.command_line import vigneron

pytestmark = pytest.mark.slow
# The learning rate is constant, so these are the first steps of the demo's own run.
STEPS = 8


def exact_matches(run: Path) -> list[float]:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["eval/exact_match"] for record in metrics if "eval/exact_match" in record]


def test_the_demo_raises_held_out_exact_match_by_at_least_0_30(tmp_path: Path) -> None:
    """Its recipe does, as early as in its eighth step of fourteen, without the evaluation between."""
    overrides = (f"steps={STEPS}", f"eval_every={STEPS}")
    done = vigneron("train", "demo", *overrides, "--name", "demo", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    scores = exact_matches(tmp_path / "demo")
    assert scores[-1] - scores[0] >= 0.30


def test_the_demo_trains_both_rewards_and_reports_them(tmp_path: Path) -> None:
    done = vigneron("demo", "steps=1", "eval_every=1", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    for arm in ("demo-pgsrm", "demo-binary"):
        assert len(exact_matches(tmp_path / arm)) == 2
    assert (tmp_path / "demo-pgsrm" / "report.html").is_file()
    assert f"{exact_matches(tmp_path / 'demo-pgsrm')[-1]:.2f}" in done.out
