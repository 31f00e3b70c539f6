"""`--profile`: phases and shares of a step, by hand, and a real run's table."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from vigneron.cli.main import app
from vigneron.report.terminal import profile_rows
from vigneron.timing import WHOLE, end_timed_step, phase, recording_timings, start_timing


def test_medians_shares_and_the_rest_by_hand() -> None:
    laps = [{"rollout/decode": 0.1 * i, "rollout": 0.2 * i, "update": 0.3 * i, WHOLE: 0.6 * i} for i in (9, 9, 1, 2, 3)]
    laps[3] = {**laps[3], "save": 0.15}
    rows = {name: (seconds, share) for name, seconds, share in profile_rows(laps)}
    assert list(rows) == ["rollout", "rollout/decode", "update", "save", "other", WHOLE]
    assert rows["rollout"] == pytest.approx((0.4, 0.4 / 1.2))
    assert rows["rollout/decode"] == pytest.approx((0.2, 0.2 / 1.2))
    assert rows["save"] == pytest.approx((0.05, 0.05 / 1.2))
    assert rows["other"] == pytest.approx((1.2 - 0.4 - 0.6 - 0.05, 0.15 / 1.2))


def test_phases_nest_and_cost_nothing_when_nobody_listens() -> None:
    with phase("alone"):
        pass
    end_timed_step()
    with recording_timings() as watch:
        with phase("outer"), phase("inner"):
            pass
        end_timed_step()
    (lap,) = watch.steps
    assert list(lap) == ["outer/inner", "outer", WHOLE]
    assert 0 <= lap["outer/inner"] <= lap["outer"] <= lap[WHOLE]


def test_what_came_before_the_first_step_is_in_no_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("vigneron.timing.time", SimpleNamespace(perf_counter=lambda: now[0]))
    with recording_timings() as watch:
        with phase("loading"):
            now[0] += 5
        start_timing()
        with phase("update"):
            now[0] += 1
        end_timed_step()
    (lap,) = watch.steps
    assert lap == {"update": 1, WHOLE: 1}


@pytest.mark.slow
def test_the_command_prints_where_the_time_went(tiny_folder: Path, tmp_path: Path) -> None:
    overrides = [f"model={tiny_folder}", "steps=3", "prompts_per_step=2", "max_new_tokens=3", "model.device=cpu"]
    done = CliRunner().invoke(app, ["train", "grpo-antonyms", *overrides, "--runs", str(tmp_path), "--profile"])
    assert done.exit_code == 0, done.output
    for name in ("rollout", "prefill", "decode", "reward", "advantage", "update", "gradient", "optimizer", WHOLE):
        assert name in done.output
    assert "100%" in done.output
