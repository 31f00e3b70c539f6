"""Rows 20 and 22 of the fault table: files of settings, data and runs from somebody who means harm."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vigneron.commands.rubric_try import parse_judge
from vigneron.config import Config
from vigneron.data.lines import LONGEST_LINE as LONGEST_ROW
from vigneron.data.sources import read_rows
from vigneron.errors import LONGEST_LINE, MOST_LINES, UserError
from vigneron.recipe import load_config
from vigneron.report.comparison_files import write_comparison
from vigneron.report.html import write_report
from vigneron.report.tables import metrics_table, samples_table
from vigneron.report.terminal import TerminalView, say
from vigneron.rubric.read import read_rubric
from vigneron.run_store.experiment_arms import Arm, CollectedRun
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.status import status_of
from vigneron.text import to_cell
from vigneron.training.checkpoint.read import check_manifest

PYTHON = "!!python/object/apply:os.system ['touch pwned']"
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 40))
HOSTILE = {
    "python": f"steps: {PYTHON}\n",
    "aliases": ALIASES,
    "merges": MERGES,
    "circle": "a: &a [*a]\n",
    "deep": "a: " + "[" * 5_000,
    "wide": "a: [" + "x, " * 20_001 + "]\n",
    "long": "a: " + "x" * 1_000_001,
    "huge": b"\x00" * 5_000_000,
    "digits": "steps: " + "1" * 5_000,
    "colons": "steps: 1" + ":1" * 3_000,
}
ESC = "\x1b[31mred\x1b[2J\u202e"


def one_line(error: UserError) -> str:
    line = str(error)
    assert line.isprintable(), line[:200]
    assert len(line) <= LONGEST_LINE + 10
    return line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------------------------------------- YAML


def read_recipe(path: Path) -> Any:
    return load_config(str(path))


def read_run(path: Path) -> Any:
    return RunFolder.open(path.parent).config()


def read_judge(path: Path) -> Any:
    return parse_judge(str(path))


@pytest.mark.parametrize("read", [read_recipe, read_run, read_rubric, read_judge])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_yaml_is_one_line_wherever_it_is_read(here: Path, read: Any, kind: str) -> None:
    path = here / "config.yaml"
    content = HOSTILE[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read(path)
    one_line(caught.value)
    assert status_of(here).recipe == "", "a list of runs goes on without it"
    assert sorted(p.name for p in here.iterdir()) == ["config.yaml"], "nothing ran"


def test_a_list_of_runs_survives_a_file_that_ends_libyaml(here: Path) -> None:
    """Composed by libyaml, so many brackets are more than the process's stack."""
    (here / "config.yaml").write_text("[" * 200_000)
    code = "import sys; from pathlib import Path; from vigneron.run_store.status import status_of; status_of(Path('.'))"
    assert subprocess.run([sys.executable, "-c", code], cwd=here, timeout=600).returncode == 0


def test_an_error_of_many_lines_is_cut_and_its_keys_break_none(here: Path) -> None:
    path = here / "my.yaml"
    path.write_text("".join(f'"k{n}\\n\\e[31m{"x" * 900}": 1\n' for n in range(400)))
    with pytest.raises(UserError) as caught:
        load_config(str(path))
    lines = str(caught.value).split("\n")
    assert len(lines) == MOST_LINES
    assert lines[-1].startswith("… and ")
    assert all(line.isprintable() and len(line) <= LONGEST_LINE + 10 for line in lines)
    assert all(line.startswith(f"{path}: ") for line in lines[:-1])


# ---------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": NaN}', "NaN is not a JSON number"),
        ('{"prompt": "a", "score": -Infinity}', "-Infinity is not a JSON number"),
        ('{"prompt": "a", "score": 1e999}', "1e999 is not a JSON number"),
        ('{"prompt": "\\ud800"}', "half of a character"),
        ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
        ('{"prompt": ' + "1" * 5_000 + "}", "more than 300 digits"),
        ('{"prompt": "' + "x" * LONGEST_ROW + '"}', f"longer than {LONGEST_ROW} characters"),
    ],
    ids=["nan", "infinity", "overflow", "surrogate", "deep", "digits", "long"],
)
def test_a_row_that_cannot_be_kept_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(UserError, match=f"line 2 .*{said}") as caught:
        read_rows(path)
    one_line(caught.value)


def test_a_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "\\ud83d\\ude00"}\n')
    assert read_rows(path) == [{"prompt": "😀"}]


# ---------------------------------------------------------------------------------------------- folders from others


def a_run(place: Path, completion: str = "cold") -> Path:
    folder = RunFolder.create(place, "mine", exact_name=True)
    folder.write_config(load_config("demo"))
    for step in (0, 1):
        folder.append("metrics.jsonl", {"step": step, "reward": 0.5, "eval/accuracy": 0.5})
        store = SampleStore(folder.path)
        texts = {"prompt": completion, "completion": completion, "answer": completion}
        sample = Sample(step, "eval", 0, **texts, reward=0.5, advantage=None, correct=True, truncated=False, extras={})
        store.add([sample])
        store.close()
    return folder.path


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "samples.sqlite", "status.json", "data", "checkpoints/step-1"]
)
def test_a_link_out_of_a_runs_folder_is_refused(tmp_path: Path, name: str) -> None:
    run = a_run(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    link = run / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(precious)
    with pytest.raises(UserError, match="outside the run's folder"):
        RunFolder.open(run)
    status_of(run)
    RunFolder(run).lock()
    assert precious.read_text() == "mine"


def test_endless_files_are_not_read_to_their_end(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for name in ("status.json", "metrics.jsonl", "config.yaml"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to("/dev/zero")
    assert status_of(run).state == "killed"


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_damaged_samples_are_one_line(tmp_path: Path, content: bytes) -> None:
    run = a_run(tmp_path)
    for path in run.glob("samples.sqlite*"):
        path.unlink()
    (run / "samples.sqlite").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read '.*samples\.sqlite'"):
        write_report([run])


@pytest.mark.parametrize("content", [b"[1]\n", b"{oops\n", b"\xff\n", b'{"reward": 1}\n', b"[" * 50_000 + b"\n"])
def test_damaged_metrics_are_one_line(tmp_path: Path, content: bytes) -> None:
    run = a_run(tmp_path)
    (run / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read '.*metrics\.jsonl'"):
        write_report([run])


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        [],
        {"../outside": "0" * 64},
        {"/proc/version": "0" * 64},
        {"": "0" * 64},
        {"a\x00b": "0" * 64},
        {"x" * 5000: "0" * 64},
        {"state": "0" * 64},
    ],
    ids=["empty", "list", "above", "absolute", "no name", "zero", "long", "folder"],
)
def test_a_manifest_speaks_of_its_own_files(tmp_path: Path, manifest: Any) -> None:
    checkpoint = tmp_path / "step-1"
    (checkpoint / "state").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is damaged: ") as caught:
        check_manifest(checkpoint, weights_only=True)
    one_line(caught.value)


# ---------------------------------------------------------------------------------------------- what is shown


def printed(what: Any, *, terminal: bool = True) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=200)
    what(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    texts = {"prompt": ESC, "completion": ESC, "answer": ESC}
    sample = Sample(1, "train", 0, **texts, reward=1.0, advantage=None, correct=None, truncated=False, extras={})
    ways = [
        lambda console: console.print(samples_table([sample])),
        lambda console: console.print(metrics_table({ESC: 1.0, "[red]x[/nope]": 2.0})),
        lambda console: say(console, f"note: {ESC}"),
        lambda console: TerminalView(console, "x").notice(ESC),
    ]
    for way in ways:
        said = printed(way)
        assert "\x1b[31m" not in said
        assert "\x1b[2J" not in said
        assert "\u202e" not in said
        assert "red" in said
    view = TerminalView(Console(file=io.StringIO(), force_terminal=True), f"[red]x[/nope]{ESC}")
    with view:
        pass


def test_what_a_spreadsheet_would_run_is_text(tmp_path: Path) -> None:
    config: Config = load_config("demo", keys={"recipe": "=1+cmd|' /C calc'!A0"})
    run = CollectedRun(tmp_path, config, [{"step": 1, "reward": 0.5, "episodes": 1}], 1.0)
    write_comparison([Arm(config.recipe, [run])], tmp_path / "out")
    rows = list(csv.reader((tmp_path / "out" / "compare.csv").read_text().splitlines()))
    assert {row[0] for row in rows[1:]} == {"'=1+cmd|' /C calc'!A0"}
    assert [to_cell(text) for text in ("+1", "-1", "@x", "\tx", "x", 5, -5)] == [
        "'+1",
        "'-1",
        "'@x",
        "'\tx",
        "x",
        5,
        -5,
    ]


def test_a_report_shows_control_characters_and_tags_as_text(tmp_path: Path) -> None:
    page = write_report([a_run(tmp_path, f"<img src=x onerror=alert(1)>{ESC}")]).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;img src=x" in page


def test_the_command_line_escapes_what_it_repeats(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vigneron", "train", f"{ESC}.yaml"], cwd=here, capture_output=True, env={**os.environ}
    )
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr + done.stdout
    assert b"\\x1b[31mred" in done.stderr
