"""The demo's recipe with the real model: minutes, so `make test-slow`. `cli/test_verbs.py` has its command."""

import json
from pathlib import Path

import pytest

from support.command_line import vigneron
from vigneron.commands.demo import ARMS, summary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_held_out")]


def test_pgsrm_learns_to_copy(tmp_path: Path) -> None:
    """As early as in its second step of ten: 8 of 17 answers were measured to have the copy in them (in the third step
    0.65 of all 68). The learning rate is constant, and without training no answer has it."""
    few = ("steps=2", "eval_every=2")
    done = vigneron("train", "demo", *ARMS["PGSRM"], *few, "--name", "run", "--runs", str(tmp_path))
    assert done.code == 0, done.err
    found = summary([json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()])
    assert found["included_before"] == 0.0
    assert found["included"] >= 0.2
    assert found["taught"] == found["steps"]
