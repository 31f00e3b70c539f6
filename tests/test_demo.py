"""The demo's recipe with the real model: minutes, so `make test-slow`. `cli/test_verbs.py` has its command."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.learning import Learned
from vigneron import api
from vigneron.commands.demo import ARMS, summary
from vigneron.training.callbacks import Silent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_held_out")]


class UntilCopied(Silent):
    """Ends the run when a fifth of the held-out answers have the copy in them."""

    def step(self, run: Any, metrics: Any, *_: Any) -> None:
        if metrics.get("eval/answer_included", 0.0) >= 0.2:
            raise Learned


def test_pgsrm_learns_to_copy(tmp_path: Path) -> None:
    """Within the demo's ten steps; without training no answer has the copy in it. In which step depends on rounding:
    the second on one CPU, the fourth on another."""
    with pytest.raises(Learned):
        api.train("demo", *ARMS["PGSRM"], "eval_every=1", name="run", runs=tmp_path, view=UntilCopied())
    found = summary([json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()])
    assert found["included_before"] == 0.0
    assert found["taught"] == found["steps"] <= 10
