"""`vigneron runs`, `show` and `methods`: what they read from folders, how fast, and in terminals of any width."""

import io
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.command_line import vigneron
from vigneron.commands.runs import ago, list_runs, print_runs
from vigneron.commands.show import print_run
from vigneron.recipe import load_config
from vigneron.report.tables import whole_sparkline
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.headline_metrics import has_open_answers, headline_metrics, headline_values
from vigneron.run_store.metrics_file import READ_WHOLE, records_of
from vigneron.run_store.notices import Notice, keep_notice, kept_notices
from vigneron.run_store.run_details import run_details
from vigneron.run_store.status import readable_size, write_status

RECORDS: list[dict[str, Any]] = [
    {"step": 0, "eval/accuracy": 0.125, "eval/reward": 0.25},
    {"step": 1, "reward": 0.1, "accuracy": 0.0, "entropy": 2.5, "kl": 0.0},
    {"step": 2, "reward": 0.5, "accuracy": 0.5, "entropy": 1.5, "kl": 0.25, "eval/accuracy": 0.75, "eval/reward": 0.5},
    {"step": 3, "reward": 0.4, "accuracy": 0.25, "entropy": 1.0, "kl": 0.5, "eval/accuracy": 0.5, "eval/reward": 0.625},
]


def make_run(runs: Path, name: str, *overrides: str, recipe: str = "critic-antonyms", records: Any = None) -> RunFolder:
    folder = RunFolder.create(runs, name, exact_name=True)
    folder.write_config(load_config(recipe, overrides))
    for record in RECORDS if records is None else records:
        folder.append("metrics.jsonl", record)
    return folder


def checkpoint(folder: RunFolder, step: int, size: int) -> None:
    path = folder.checkpoints / f"step-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * size)
    (path / "manifest.json").write_text("{}")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    place = tmp_path / "runs"
    finished = make_run(place, "finished", "steps=3")
    write_status(finished, "finished", began=100.0, ended=191.0, error=None)
    failed = make_run(place, "failed", records=[])
    write_status(failed, "failed", began=100.0, ended=101.0, error="the judge\x1b[31m said no")
    write_status(make_run(place, "killed"), "running", began=100.0)
    for number, folder in enumerate(("failed", "killed", "finished")):
        if (place / folder / "metrics.jsonl").is_file():
            os.utime(place / folder / "metrics.jsonl", (1000 + number, 1000 + number))
    return place


def test_runs_are_listed_newest_first_with_their_state(runs: Path) -> None:
    answer = vigneron("runs", runs)
    assert answer.code == 0, answer.err
    heading, *listed = answer.out.splitlines()
    assert heading.split() == ["run", "state", "step", "held", "out", "metrics", "changed", "size", "method"]
    assert [line.split()[:3] for line in listed[:3]] == [
        ["finished", "finished", "3/3"],
        ["killed", "killed", "3/14"],
        ["failed", "failed", "0/14"],
    ]
    assert "held-out accuracy 0.500  held-out reward 0.625  reward 0.400" in listed[0]
    assert listed[3] == "failed: the judge\\x1b[31m said no"
    assert "\x1b" not in answer.out


def test_runs_as_json(runs: Path) -> None:
    found = json.loads(vigneron("runs", runs, "--json").out)
    assert [run["name"] for run in found] == ["finished", "killed", "failed"]
    assert found[0]["figures"]["eval/accuracy"] == 0.5
    assert found[0]["bytes"] == sum(p.stat().st_size for p in (runs / "finished").rglob("*") if p.is_file())
    assert found[2]["error"].startswith("the judge")


def test_sizes_puts_the_largest_first(runs: Path) -> None:
    checkpoint(RunFolder(runs / "killed"), 3, 2_000_000)
    listed = vigneron("runs", runs, "--sizes").out.splitlines()
    assert listed[1].startswith("killed")
    assert "2.0 MB" in listed[1]


def test_no_run_and_no_folder_are_said(tmp_path: Path) -> None:
    empty = vigneron("runs", tmp_path)
    assert (empty.code, empty.err) == (0, "")
    assert "no runs in" in empty.out
    nowhere = vigneron("runs", tmp_path / "nowhere")
    assert nowhere.code == 2
    assert nowhere.err.startswith("error: there is no folder")


@pytest.mark.parametrize("damage", ["config.yaml", "metrics.jsonl", "status.json", "notices.jsonl"])
def test_a_damaged_folder_is_listed_all_the_same(runs: Path, damage: str) -> None:
    (runs / "finished" / damage).write_bytes(b"\xff{[: not this\n")
    answer = vigneron("runs", runs)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 5
    shown = vigneron("show", runs / "finished")
    assert (shown.code == 0) == (damage != "config.yaml"), shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_line_fits_into_the_terminal(runs: Path, width: int) -> None:
    out = io.StringIO()
    print_runs(Console(file=out, force_terminal=True, width=width, no_color=True), list_runs(runs)[:2])
    lines = [line.replace("\x1b[2m", "").replace("\x1b[0m", "") for line in out.getvalue().splitlines()]
    assert len(lines) == 3
    assert all(len(line) <= max(width, 32) for line in lines), lines
    assert ("metrics" in lines[0]) == (width == 200)


@pytest.mark.slow
def test_hundreds_of_runs_are_listed_without_torch(tmp_path: Path) -> None:
    template = make_run(tmp_path / "runs", "run-0").path
    records = "".join(json.dumps({**RECORDS[3], "step": n}) + "\n" for n in range(200))
    for number in range(1, 300):
        folder = tmp_path / "runs" / f"run-{number}"
        folder.mkdir()
        (folder / "config.yaml").write_bytes((template / "config.yaml").read_bytes())
        (folder / "metrics.jsonl").write_text(records)
    code = (
        "import sys\nfrom vigneron.cli.main import app\n"
        f"app(['runs', {str(tmp_path / 'runs')!r}], standalone_mode=False)\n"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    *listed, heavy = done.stdout.splitlines()
    assert len(listed) == 301
    assert heavy == "[]"


# ---------------------------------------------------------------------------------------------- show


def test_show_says_what_a_run_is_and_how_to_go_on(runs: Path) -> None:
    path = runs / "finished"
    folder = RunFolder(path)
    for step, size in ((2, 1_500_000), (3, 2_500_000)):
        checkpoint(folder, step, size)
    (path / "data").mkdir()
    (path / "data" / "train.jsonl").write_text("{}\n" * 5)
    keep_notice(folder, Notice(0, "one update a step"))
    keep_notice(folder, Notice(2, "many [bold]completions\x1b are cut", "warning", "truncation"))
    answer = vigneron("show", path)
    assert answer.code == 0, answer.err
    assert "\x1b" not in answer.out
    lines = answer.out.splitlines()
    assert lines[0].startswith("finished  finished  step 3 of 3, 1 min 31 s")
    for line in (
        "recipe   critic-antonyms",
        "changed  steps=3",
        "data     antonyms: 5 rows, 0 held out",
        "  held-out accuracy 0.125 → 0.500",
        "  held-out reward   0.250 → 0.625",
        "  step 0            one update a step",
        "  step 2            many [bold]completions\\x1b are cut",
        "  step 2            1.5 MB  best, held out",
        "  step 3            2.5 MB  newest",
        f"  chat              vigneron chat {path}",
        f"  export            vigneron export {path} DIR",
    ):
        assert line in lines, line
    assert "  reward                0.400  ▁█▆" in lines
    assert f"  train further     vigneron resume {path} steps=6" in lines
    assert f"  resume            vigneron resume {path}" not in lines
    assert (
        f"  resume            vigneron resume {runs / 'killed'}" in vigneron("show", runs / "killed").out.splitlines()
    )
    assert "error: the judge\\x1b[31m said no" in vigneron("show", runs / "failed").out.splitlines()


def test_show_as_json(runs: Path) -> None:
    checkpoint(RunFolder(runs / "finished"), 3, 10)
    found = json.loads(vigneron("show", runs / "finished", "--json").out)
    assert found["state"] == "finished"
    assert found["changed_from_recipe"] == {"steps": 3}
    assert found["before_and_after"]["eval/accuracy"] == [0.125, 0.5]
    assert found["checkpoints"] == [{"step": 3, "bytes": 12, "best": False}]
    assert found["config"]["recipe"] == "critic-antonyms"


def test_show_needs_a_runs_folder(tmp_path: Path) -> None:
    answer = vigneron("show", tmp_path)
    assert answer.code == 2
    assert answer.err == f"error: '{tmp_path}' is not a run's folder: it has no config.yaml\n"


@pytest.mark.parametrize("width", [30, 40, 120])
def test_show_fits_into_narrow_terminals(runs: Path, width: int) -> None:
    out = io.StringIO()
    print_run(Console(file=out, force_terminal=True, width=width, no_color=True), run_details(runs / "finished"))
    assert "curves" in out.getvalue()


def test_a_long_run_is_shown_without_reading_all_of_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "long")
    line = json.dumps({"step": 123456, **{f"figure/{n}": 0.123456789 for n in range(40)}, "reward": 0.5})
    count = READ_WHOLE // len(line) * 5
    with (folder.path / "metrics.jsonl").open("a") as file:
        for step in range(4, count):
            file.write(line.replace("123456,", f"{step},", 1) + "\n")
    records = records_of(folder.path)
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps))
    assert steps[:4] == [0, 1, 2, 3]
    assert steps[-1] == count - 1
    assert len(steps) < 2000
    assert max(b - a for a, b in pairwise(steps)) < count / 200


# ---------------------------------------------------------------------------------------------- which figures


def test_an_accuracy_of_zero_is_hidden_only_where_no_answer_can_be_right() -> None:
    own = {"method": {"name": "sft"}, "data": {"train": "my.jsonl"}, "reward": {"kind": "binary"}}
    zero, once = {"loss/nll": 1.0, "eval/accuracy": 0.0, "eval/reward": 0.0}, {"eval/accuracy": 0.25}
    assert [one.label for one in headline_metrics(own, [zero])] == ["NLL", "held-out accuracy"]
    free = {**own, "data": {"task": "instructions"}}
    assert [one.label for one in headline_metrics(free, [zero])] == ["NLL"]
    assert "held-out accuracy" in [one.label for one in headline_metrics(free, [zero, once])]
    values = headline_values({**own, "data": {"task": "antonyms"}}, zero)
    assert [(one.label, value) for one, value in values] == [("held-out accuracy", 0.0), ("NLL", 1.0)]
    assert not has_open_answers({**own, "data": {"train": "my.jsonl", "checker": "m:f"}})
    assert not has_open_answers({**own, "method": {"name": "reward_model"}})
    assert not has_open_answers({**own, "method": {"name": "grpo"}})
    assert has_open_answers({**own, "method": {"name": "grpo"}, "reward": {"kind": "rubric"}})


def test_notices_are_read_as_they_were_kept(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run")
    said = [Notice(0, "a"), Notice(3, "b", "warning", "kl")]
    for notice in said:
        keep_notice(folder, notice)
    with (folder.path / "notices.jsonl").open("a") as file:
        file.write('{"step": 4, "te')
    assert kept_notices(folder.path) == said


def test_numbers_for_people() -> None:
    assert [readable_size(n) for n in (0, 999, 1500, 25_000, 2_500_000_000, 3e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "25 kB",
        "2.5 GB",
        "3.0 TB",
    ]
    assert [ago(s) for s in (5, 61, 7300, 90_000)] == ["now", "1 min ago", "2 h ago", "1 d ago"]
    assert whole_sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"


def test_methods_lists_every_method_and_the_keys_of_one() -> None:

    from vigneron.commands.methods import METHODS

    listed = vigneron("methods").out.splitlines()
    assert [line.split()[0] for line in listed] == list(METHODS)
    keys = vigneron("methods", "dpo").out
    assert "method.beta" in keys
    wrong = vigneron("methods", "ddpo")
    assert (wrong.code, wrong.err) == (2, "error: unknown method 'ddpo' (did you mean 'dpo'?)\n")
