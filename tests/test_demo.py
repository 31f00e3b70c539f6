"""The demo's recipe with the real model: minutes, so `make test-slow`. `cli/test_verbs.py` has its command."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from vigneron.commands.demo import ARMS, summary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_held_out")]


def trained(place: Path, arm: str, *overrides: str) -> list[dict[str, Any]]:
    done = vigneron("train", "demo", *ARMS[arm], *overrides, "--name", "run", "--runs", str(place / arm))
    assert done.code == 0, done.err
    return [json.loads(line) for line in (place / arm / "run" / "metrics.jsonl").read_text().splitlines()]


def test_pgsrm_learns_to_copy(tmp_path: Path) -> None:
    """As early as in its third step of ten (0.65 of all 68 was measured); the learning rate is constant."""
    found = summary(trained(tmp_path, "PGSRM", "steps=3", "eval_every=3"))
    assert found["included_before"] == 0.0
    assert found["included"] >= 0.3
    assert found["taught"] == found["steps"]


def test_the_exact_check_has_nothing_to_teach(tmp_path: Path) -> None:
    """In its first step: no sample is a copy, so all rewards are 0, and the weights stay as they are."""
    (record,) = trained(tmp_path, "exact check", "steps=1", "prompts_per_step=1", "eval_every=0")
    assert record["reward"] == record["grad_norm/actor"] == 0.0
