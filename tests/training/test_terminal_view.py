"""The live view, on real runs of tiny models: right figures for each method, any width, warnings, and that waiting is
seen."""

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.tiny_runs import tiny_config, write_data
from vigneron import Progress, api
from vigneron.errors import UserError
from vigneron.report.tables import samples_lines, samples_table
from vigneron.report.terminal import TerminalView
from vigneron.run_store.notices import kept_notices
from vigneron.run_store.samples import Sample
from vigneron.timing import phase, progress, reporting_phases
from vigneron.training.callbacks import Silent
from vigneron.training.method import Metrics

SFT = {"method": {"name": "sft"}, "reward": {"kind": "binary"}, "group_size": 1, "optimizer": {}}
GRPO = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "optimizer": {"actor_lr": 1e-3}}
QUICK = {"steps": 2, "prompts_per_step": 2, "eval_every": 2, "save_every": 0}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def terminal(width: int, height: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def watched(folder: Path, model: Path, console: Console, **changes: Any) -> str:
    config = tiny_config(model, write_data(folder), **{**QUICK, **changes})
    with TerminalView(console, "my title") as view:
        api.train(config, name="run", runs=folder, view=view)
    return plain(text_of(console))


def last_panel(shown: str) -> list[str]:
    return shown[shown.rindex("╭") :].splitlines()


@pytest.mark.parametrize("width", [40, 100])
def test_demonstrations_show_no_rewards_and_an_accuracy_of_zero(tmp_path: Path, tiny_folder: Path, width: int) -> None:
    lines = last_panel(watched(tmp_path, tiny_folder, terminal(width), **SFT))
    assert all(len(line) <= width for line in lines), lines
    whole = "\n".join(lines)
    assert re.search(r"NLL +\d\.\d{3} +▁?[▁▂▃▄▅▆▇█]+", whole)
    assert re.search(r"held-out accuracy +0\.000", whole)
    for absent in ("reward", "missing", "KL"):
        assert absent not in whole, absent
    assert "step 2/2" in whole


@pytest.mark.parametrize("width", [40, 100])
def test_samples_and_figures_fit(tmp_path: Path, tiny_folder: Path, width: int) -> None:
    lines = last_panel(watched(tmp_path, tiny_folder, terminal(width), **GRPO))
    assert all(len(line) <= width for line in lines), lines
    whole = "\n".join(lines)
    for figure in ("reward", "entropy", "KL", "zero-std groups", "held-out accuracy"):
        assert re.search(rf"{figure} +-?\d\.\d{{3}} +[▁▂▃▄▅▆▇█]+", whole), figure
    assert whole.count("say ") == 3


@pytest.mark.slow
def test_warnings_stand_in_the_panel_and_in_the_folder(tmp_path: Path, tiny_folder: Path) -> None:
    """A tiny child is never right, so no two rewards of a group differ."""
    shown = watched(tmp_path, tiny_folder, terminal(120), **{**GRPO, "steps": 6, "eval_every": 0})
    whole = " ".join(line.strip("│ ") for line in last_panel(shown))
    assert "step 5: in 100% of the groups of the last 5 steps all rewards are equal" in whole
    warned = [notice for notice in kept_notices(tmp_path / "run") if notice.kind == "warning"]
    assert [(notice.step, notice.about) for notice in warned] == [(1, ""), (5, "flat groups")]
    assert kept_notices(tmp_path / "run")[0].kind == "note"


def test_a_pipe_gets_lines(tmp_path: Path, tiny_folder: Path) -> None:
    console = Console(file=io.StringIO(), width=30)
    shown = watched(tmp_path, tiny_folder, console, **{**GRPO, "steps": 5, "eval_every": 0})
    assert "\x1b" not in text_of(console)
    kinds = [line.split()[0] for line in shown.splitlines()]
    assert kinds.count("step") == 5
    assert kinds.count("warning:") == 2
    assert set(kinds) <= {"start:", "step", "note:", "warning:"}


@pytest.mark.slow
def test_a_resumed_run_says_each_warning_once(tmp_path: Path, tiny_folder: Path) -> None:
    changes = {**QUICK, **GRPO, "steps": 6, "eval_every": 0, "save_every": 3}
    config = tiny_config(tiny_folder, write_data(tmp_path), **changes)
    api.train(config, name="run", runs=tmp_path)
    whole = kept_notices(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-6")
    said: list[str] = []
    api.resume(tmp_path / "run", view=lambda now: said.extend(now.notices))
    assert kept_notices(tmp_path / "run") == whole
    assert [text for text in said if "in no group" in text] == []
    assert len([text for text in said if "of the last 5 steps" in text]) == 1


def test_a_long_phase_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vigneron.report.terminal.PHASE_SHOWN_AFTER", 0.0)
    console = terminal(60)
    with TerminalView(console, "my title") as view, reporting_phases(view.phase):
        for name, shown in (("ask the parent", "asking the parent 3/9"), ("load the model", "loading the model")):
            with phase(name):
                if name == "ask the parent":
                    progress(name, 3, 9)
                with phase("inside"):
                    assert view._live is not None
                    view._live.refresh()
            assert f"my title: {shown}, 0 s" in plain(text_of(console))
    assert "inside" not in text_of(console)


def test_a_function_is_a_view(tmp_path: Path, tiny_folder: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), **{**QUICK, **GRPO, "prompts_per_step": 100})
    seen: list[Progress] = []
    trained = api.train(config, name="run", runs=tmp_path, view=seen.append)
    assert [(now.step, now.steps, now.share) for now in seen] == [(1, 2, 0.5), (2, 2, 1.0)]
    assert {now.folder for now in seen} == {trained.folder}
    assert all("reward" in now.metrics and now.seconds > 0 for now in seen)
    assert "eval/accuracy" in seen[1].metrics
    assert any("prompts_per_step: 100" in text for text in seen[0].notices)
    with pytest.raises(TypeError, match=r"view: expected a function that takes a vigneron\.Progress"):
        api.train(config, runs=tmp_path, view="loud")  # type: ignore[arg-type]


def test_what_a_function_raises_stops_the_run(tmp_path: Path, tiny_folder: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), **{**QUICK, **GRPO})

    def enough(now: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        api.train(config, name="run", runs=tmp_path, view=enough)


def test_pairs_say_which_side_a_text_is() -> None:
    one = Sample(1, "train", 0, "p\x1b[31m", "good\n", None, None, None, None, False, {"side": "chosen"})
    out = Console(file=io.StringIO(), width=80)
    out.print(samples_table([one], rewarded=False))
    assert text_of(out).split() == ["prompt", "completion", "side", "p\\x1b[31m", "'good\\n'", "chosen"]
    rewarded = replace(one, extras={}, answer="a" * 99)
    first, second = samples_lines([rewarded], 40)
    assert (first.plain, len(second.plain)) == ("p\\x1b[31m", 40)


def test_an_evaluation_that_a_resume_runs_again_is_that_of_its_step(tmp_path: Path, tiny_folder: Path) -> None:
    class Raises(Silent):
        def step(self, run: Any, *_: Any) -> None:
            def fails() -> Metrics:
                raise UserError("the judge does not answer")

            run.evaluate = fails

    config = tiny_config(tiny_folder, write_data(tmp_path), **{**GRPO, **QUICK, "eval_every": 2})
    with pytest.raises(UserError, match="the judge does not answer"):
        api.train(config, name="run", runs=tmp_path, view=Raises())
    console = terminal(100)
    with TerminalView(console, "my title") as view:
        api.resume(tmp_path / "run", view=view)
    shown = plain(text_of(console))
    assert "step 2/2  held-out accuracy 0.000" in shown
    assert "before training" not in shown
