"""Every verb, from start to end, on a tiny child and a dataset of the test's own."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

import vigneron as package
from support import fault_runs
from support.command_line import vigneron, write_jsonl, write_recipe
from vigneron.api import load_run
from vigneron.api import train as train_in_python
from vigneron.commands.demo import LATER, verdict
from vigneron.errors import UserError
from vigneron.recipe import load_config, recipe_names
from vigneron.report.terminal import TerminalView, say
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore

ESCAPE = "\x1b"
HEAVY = {"torch", "transformers", "numpy", "matplotlib", "yaml", "vigneron.config", "vigneron.recipe", "vigneron.api"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verbs")


@pytest.fixture(scope="module")
def recipe(place: Path, tiny_folder: Path) -> Path:
    rows = [f'{{"prompt": "{letter}", "answer": "{letter.upper()}"}}' for letter in "abcdef"]
    held_out = ['{"prompt": "x[bold]", "answer": "X"}', '{"prompt": "y", "answer": "Y"}']
    data = {
        "train": str(write_jsonl(place / "train.jsonl", rows)),
        "held_out": str(write_jsonl(place / "held_out.jsonl", held_out)),
    }
    return write_recipe(
        place,
        tiny_folder,
        data=data,
        optimizer={"actor_lr": 0.05},  # so large that four steps change what the child says
        steps=4,
        prompts_per_step=4,
        eval_every=2,
        save_every=2,
        keep_last=5,
    )


@pytest.fixture(scope="module")
def trained(place: Path, recipe: Path) -> tuple[Path, str]:
    """A finished run, and what was printed. Tests read it; those that write take a copy."""
    answer = vigneron("train", recipe, "--name", "first", "--runs", place / "runs", "seed=7")
    assert answer.code == 0, answer.err
    return place / "runs" / "first", answer.out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------------------------------- help, recipes, init


def core_s(*words: str) -> tuple[float, str]:
    """Seconds of a core that Python takes, the least of three, and what it prints."""
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=600)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds), done.stdout


def test_help_answers_within_half_a_second() -> None:
    """In seconds of a core: what else the machine does is not its fault. On a machine where a library of commands alone
    takes as long, in three times that."""
    help_s, said = core_s("-m", "vigneron", "--help")
    for verb in (
        "train",
        "resume",
        "demo",
        "recipes",
        "init",
        "validate",
        "eval",
        "chat",
        "report",
        "runs",
        "show",
        "export",
        "methods",
    ):
        assert re.search(rf"^  {verb} +\S", said, re.MULTILINE), verb
    assert help_s < 0.5 or help_s < 3 * core_s("-c", "import typer")[0], help_s


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vigneron", "train", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "vigneron.cli.main" in imported
    assert not imported & HEAVY


def test_recipes_are_listed_with_a_line_each() -> None:
    answer = vigneron("recipes")
    assert answer.code == 0
    listed = [line.split(maxsplit=1) for line in answer.out.splitlines()]
    assert listed == [[name, load_config(name).about] for name in recipe_names()]


@pytest.mark.slow
def test_init_then_validate_then_train(tmp_path: Path, tiny_folder: Path) -> None:
    file = tmp_path / "mine.yaml"
    written = vigneron("init", "pgsrm-antonyms-binary", file)
    assert written.code == 0
    assert written.out == f"wrote {file}: edit it, then `vigneron train {file}`\n"
    copied, original = load_config(str(file)), load_config("pgsrm-antonyms-binary")
    assert copied.recipe == "mine"
    assert copied == original.model_copy(update={"recipe": "mine"})

    words = [f"model.name={tiny_folder}", "model.device=cpu", "steps=1", "prompts_per_step=2", "eval_every=0"]
    valid = vigneron("validate", file, *words)
    assert valid.code == 0
    assert re.search(r"is valid: \d+ training rows, \d+ held out", valid.out)
    assert "1 steps of 2 samples (2 prompts × 1), up to 2 new tokens each: 2 samples in total" in valid.out

    done = vigneron("train", file, *words, "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    config = RunFolder.open(tmp_path / "runs" / "mine").config()
    assert (config.steps, config.method.kl.estimator, config.reward.kind) == (1, "k1", "binary")


def test_validate_checks_everything_short_of_loading_a_model(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("vigneron.policy.load.load_policy", never)
    answer = vigneron("validate", recipe)
    assert answer.code == 0
    assert f"{recipe} is valid: 6 training rows, 2 held out" in answer.out.splitlines()
    for wrong in ("model.name=./nowhere", "reward={kind: semantic, embedder: nosuch}"):
        assert vigneron("validate", recipe, wrong).code == 2


@pytest.mark.slow
def test_the_demo_compares_three_rewards(tmp_path: Path, tiny_folder: Path) -> None:
    few = (f"model.name={tiny_folder}", "steps=2", "prompts_per_step=2", "eval_every=1")
    answer = vigneron("demo", *few, "--runs", tmp_path)
    assert answer.code == 0, answer.err
    for text in ("PGSRM", "exact check", "inclusion check", "0.00 → 0.00", "the same sentences before and after"):
        assert text in answer.out
    assert "never told two samples of a prompt apart" in answer.out
    configs = [RunFolder.open(tmp_path / f"demo-{name}").config() for name in ("pgsrm", "exact", "inclusion")]
    assert [config.reward.kind for config in configs] == ["semantic", "python", "binary"]
    assert {config.data.checker for config in configs} == {"inclusion"}, "accuracy means the same in all three"
    page = (tmp_path / "demo-pgsrm" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Side by side</h2>" in page
    assert "demo-exact – 1 if the answer is the copy and nothing else, else 0." in page
    assert "<th>demo-pgsrm</th><th>demo-exact</th><th>demo-inclusion</th>" in page
    for override in ("reward=binary", "data.checker=equality"):
        assert vigneron("demo", override).code == 2


def test_the_verdict_says_what_was_seen() -> None:
    def found(*scores: tuple[float | None, int]) -> dict[str, dict[str, Any]]:
        names = ("PGSRM", "exact check", "inclusion check")
        return {
            name: {"included": after, "taught": taught} for name, (after, taught) in zip(names, scores, strict=True)
        }

    silent = "The exact check never told two samples of a prompt apart, so it taught nothing."
    assert verdict(found((0.9, 20), (0.0, 0), (0.3, 12))) == f"{silent} Ahead on held-out sentences: PGSRM. {LATER}"
    silent = "The exact check and the inclusion check never told two samples of a prompt apart, so they taught nothing."
    assert verdict(found((0.9, 20), (0.0, 0), (0.0, 0))) == f"{silent} Ahead on held-out sentences: PGSRM. {LATER}"
    assert verdict(found((0.5, 20), (0.9, 3), (0.85, 12))) == (
        "Ahead on held-out sentences: exact check and inclusion check."
    )
    assert verdict(found((0.6, 20), (0.55, 3), (0.6, 12))) == "All three end about equal."
    assert "nothing to compare" in verdict(found((None, 0), (None, 0), (None, 0)))


def test_debug_may_stand_anywhere_and_shows_the_traceback(recipe: Path) -> None:
    with pytest.raises(UserError):
        vigneron("validate", recipe, "group_size=0", "--debug")
    assert vigneron("--version").out.strip() == package.__version__


# ---------------------------------------------------------------------------------------------- train


@pytest.mark.slow
def test_a_run_is_its_folder(trained: tuple[Path, str], tiny_folder: Path) -> None:
    run, _ = trained
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert (config["recipe"], config["seed"], config["steps"]) == ("my", 7, 4)
    assert config["model"]["name"] == str(tiny_folder)
    assert config["method"]["kl"]["estimator"] == "exact"  # a default, resolved
    assert config["sampling"]["temperature"] == 1.0
    assert (config["model"]["device"], config["model"]["dtype"]) == ("cpu", "float32")  # what `auto` meant here

    metrics = lines(run / "metrics.jsonl")
    assert [record["step"] for record in metrics] == [0, 1, 2, 3, 4]
    assert [record["step"] for record in metrics if "eval/exact_match" in record] == [0, 2, 4]
    for record in metrics[1:]:
        assert {"reward", "reward_std", "exact_match", "entropy", "kl", "completions/mean_length"} <= set(record)
    timings = lines(run / "timings.jsonl")
    assert [record["step"] for record in timings] == [1, 2, 3, 4]
    assert all(record["seconds"] > 0 for record in timings)
    assert (run / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_samples_are_kept(trained: tuple[Path, str]) -> None:
    store = SampleStore(trained[0], read_only=True)
    try:
        assert store.steps("train") == [1, 2, 3, 4]
        assert store.steps("eval") == [0, 2, 4]
        batch = store.page(step=1)
        assert len(batch) == 4
        assert {sample.answer for sample in batch} <= set("ABCDEF")
        assert all(sample.answer == sample.prompt.upper() for sample in batch)
        assert [sample.prompt for sample in store.page(step=4, kind="eval")] == ["x[bold]", "y"]
    finally:
        store.close()


@pytest.mark.slow
def test_a_checkpoint_is_a_transformers_folder(trained: tuple[Path, str], tiny_folder: Path) -> None:
    saved = sorted((trained[0] / "checkpoints").iterdir())
    assert [path.name for path in saved] == ["step-2", "step-4"]
    after = AutoModelForCausalLM.from_pretrained(saved[-1]).state_dict()
    before = AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict()
    assert set(after) == set(before)
    assert any((after[name] != before[name]).any() for name in after)
    assert (
        AutoTokenizer.from_pretrained(saved[-1])("abc")["input_ids"]
        == AutoTokenizer.from_pretrained(tiny_folder)("abc")["input_ids"]
    )
    manifest = json.loads((saved[-1] / "manifest.json").read_text(encoding="utf-8"))
    assert {"model.safetensors", "tokenizer.json", "state/scalars.json"} <= set(manifest)
    assert not [path for path in trained[0].rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl")]


def test_what_train_prints_when_piped(trained: tuple[Path, str]) -> None:
    run, out = trained
    assert ESCAPE not in out
    *lines, result, best, where, report, talk, look, _ = out.splitlines()
    before, *steps = [
        line for line in lines if not re.fullmatch(r"start: [\d.]+ s, [a-z]+ing.*|note: optimizer\.actor_lr.*", line)
    ]
    assert steps == lines[-4:], "after the phases of the start"
    assert before == "step 0/4  held-out accuracy 0.000  before training"
    assert result.startswith("result  no difference that 2 held-out rows could show: held-out accuracy stayed at 0.000")
    assert best == "best    no step is better than the model before training (held-out accuracy 0.000)"
    for number, line in enumerate(steps, start=1):
        figures = r"reward \d\.\d{3}  accuracy \d\.\d{3}  entropy \d\.\d{3}  KL -?\d\.\d{3}"
        held_out = r"  held-out accuracy \d\.\d{3}" if number % 2 == 0 else ""
        assert re.fullmatch(rf"step {number}/4  {figures}{held_out}  [\d.]+ samples/s  [\d:]+ left", line), line
    assert where == f"run     {run}"
    assert report == f"report  {run / 'report.html'}"
    assert talk == f"chat    vigneron chat {run}"
    assert look == f"view    vigneron view {run}"


@pytest.mark.slow
def test_runs_without_a_name_are_numbered(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIGNERON_RUNS", str(tmp_path / "chosen"))
    for _ in range(2):
        answer = vigneron("train", recipe, "steps=1", "eval_every=0")
        assert answer.code == 0, answer.err
    assert sorted(path.name for path in (tmp_path / "chosen").iterdir()) == ["my", "my-2"]


@pytest.mark.slow
def test_a_process_of_its_own_writes_plain_lines(tmp_path: Path, recipe: Path) -> None:
    log, words = tmp_path / "log", ["train", str(recipe), "steps=2", "--runs", str(tmp_path)]
    given = {"COLUMNS": "40", "TERM": "xterm-256color"}
    process = fault_runs.started(fault_runs.command, str(log), words, environment=given)
    code, said = fault_runs.ended(process), log.read_text()  # of both streams: that of errors is empty
    assert code == 0, said
    assert ESCAPE not in said
    first = [line.split()[0] for line in said.splitlines() if not line.startswith("note: optimizer.actor_lr")]
    assert first[0] == "start:"
    ended = ["result", "best", "run", "report", "chat", "view", "try"]
    assert [word for word in first if word != "start:"] == [*["step"] * 3, *ended]


def test_a_notice_is_one_line_however_narrow_the_pipe() -> None:
    out = io.StringIO()
    with TerminalView(Console(file=out, width=20), "title") as view:
        view.notice("a text that is longer than [bold] twenty columns")
    assert out.getvalue() == "note: a text that is longer than [bold] twenty columns\n"


def test_say_takes_nothing_for_markup() -> None:
    out = io.StringIO()
    say(Console(file=out, width=10), "[bold]x[/bold] :smile: [/] and a long line")
    assert out.getvalue() == "[bold]x[/bold] :smile: [/] and a long line\n"


# ---------------------------------------------------------------------------------------------- in a terminal


def watched(recipe: Path, runs: Path, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, height=40, **options)
    with TerminalView(console, "my title") as view:
        train_in_python(load_config(str(recipe), ["steps=2"]), runs=runs, view=view)
    return out.getvalue()


def test_a_terminal_shows_how_it_goes(tmp_path: Path, recipe: Path) -> None:
    shown = watched(recipe, tmp_path, color_system="standard")
    assert ESCAPE in shown
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).rpartition("my title")[2]
    assert re.search(r"step 2/2   [\d.]+ samples/s   0:00 left", last)
    for figure in ("reward", "accuracy", "entropy", "KL", "held-out accuracy"):
        assert re.search(rf"{figure} +-?\d\.\d{{3}} +[▁▂▃▄▅▆▇█]+", last), figure
    assert re.search(r"prompt +completion +reference +reward", last)
    samples = re.findall(r"│ +([a-f]) +['\"].*['\"] +([A-F]) +\d\.\d\d", last)
    assert len(samples) == 3
    assert all(prompt.upper() == parent for prompt, parent in samples)


def test_no_color_is_honoured(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured.search(watched(recipe, tmp_path, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    shown = watched(recipe, tmp_path, color_system="standard")
    assert "step 2/2" in shown
    assert not coloured.search(shown)


# ---------------------------------------------------------------------------------------------- after a run


def test_eval_scores_the_held_out_part(trained: tuple[Path, str]) -> None:
    run, _ = trained
    answer = vigneron("eval", run)
    assert answer.code == 0, answer.err
    assert ESCAPE not in answer.out
    assert "x[bold]" in answer.out  # text, not markup
    figures = dict(re.findall(r"^ *([a-z_/]+) +(-?[\d.e-]+) *$", answer.out, re.MULTILINE))
    logged = lines(run / "metrics.jsonl")[-1]
    for name in ("reward", "exact_match", "completions/mean_length"):
        assert float(figures[name]) == pytest.approx(logged[f"eval/{name}"], rel=1e-3)


def test_eval_of_a_file_and_of_an_older_step(trained: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = trained
    data = write_jsonl(tmp_path / "other.jsonl", ['{"prompt": "only this", "answer": "X"}'])
    answer = vigneron("eval", run, "--step", 2, "--file", data)
    assert answer.code == 0, answer.err
    assert "only this" in answer.out
    assert "x[bold]" not in answer.out
    assert "only this" not in vigneron("eval", run, "--file", data, "--show", 0).out
    missing = vigneron("eval", run, "--step", 3)
    assert missing.code == 2
    assert missing.err.endswith("has no checkpoint of step 3 (available: 2, 4)\n")


@pytest.mark.slow
def test_eval_fills_the_runs_template(tmp_path: Path, tiny_folder: Path) -> None:
    rows = ['{"word": "a", "answer": "b"}']
    data = {"train": str(write_jsonl(tmp_path / "words.jsonl", rows)), "template": "not {word}:"}
    recipe = write_recipe(tmp_path, tiny_folder, data=data, steps=1)
    assert vigneron("train", recipe, "--runs", tmp_path / "runs").code == 0
    answer = vigneron("eval", tmp_path / "runs" / "my", "--file", data["train"])
    assert answer.code == 0, answer.err
    assert "not a:" in answer.out
    nothing = vigneron("eval", tmp_path / "runs" / "my")
    assert nothing.code == 2
    assert "no rows to evaluate on" in nothing.err

    talk = vigneron("chat", tmp_path / "runs" / "my", stdin="q\n")
    assert "prompt template: 'not {word}:'" in talk.out
    child = load_run(tmp_path / "runs" / "my")
    assert f"after   {child.sample(['not q:'])[0]!r}" in talk.out
    raw = vigneron("chat", tmp_path / "runs" / "my", "--raw", stdin="q\n")
    assert "prompt template" not in raw.out
    assert f"after   {child.sample(['q'])[0]!r}" in raw.out


@pytest.mark.parametrize("stdin", ["hello\nx\n", 'hello\n\n"""x"""\n/exit\nnever asked\n'])
def test_chat_answers_before_and_after(trained: tuple[Path, str], stdin: str) -> None:
    run, _ = trained
    answer = vigneron("chat", run, stdin=stdin)
    assert answer.code == 0, answer.err
    assert ESCAPE not in answer.out
    child = load_run(run)
    said = re.findall(r"(before|after) +(.*)", answer.out.partition("/exit ends the chat")[2])
    expected = []
    for typed in ("hello", "x"):
        expected += [("before", repr(child.sample_before([typed])[0])), ("after", repr(child.sample([typed])[0]))]
    assert said == expected
    assert expected[0][1] != expected[1][1]


def test_chat_takes_several_lines_a_length_and_commands(trained: tuple[Path, str]) -> None:
    run, _ = trained
    stdin = '/help\n/hlep\n"""two\n\n/exit\nlines"""\n"""\nx\n"""\n/exit\n'
    answer = vigneron("chat", run, "--max-new-tokens", 3, stdin=stdin)
    assert answer.code == 0, answer.err
    assert "an answer is at most 3 tokens long" in answer.out
    assert re.search(r"^  /exit +end the chat", answer.out, re.MULTILINE)
    assert "unknown command '/hlep': /help lists them" in answer.out
    child = load_run(run)
    said = re.findall(r"^(?:> |… )*after +(.*)$", answer.out, re.MULTILINE)
    assert said == [repr(child.sample([text], max_new_tokens=3)[0]) for text in ("two\n\n/exit\nlines", "x")]


@pytest.mark.slow
def test_report_of_two_runs(trained: tuple[Path, str], place: Path, recipe: Path, tmp_path: Path) -> None:
    run, _ = trained
    second = vigneron("train", recipe, "--name", "second", "--runs", tmp_path, "steps=2")
    assert second.code == 0, second.err
    out = tmp_path / "both.html"
    answer = vigneron("report", run, tmp_path / "second", "--out", out)
    assert answer.code == 0
    assert answer.out == f"wrote {out}\n"
    page = out.read_text(encoding="utf-8")
    assert "<h1>first and second</h1>" in page
    assert page.count("<svg") == page.count('<div class="panel') > 1
    assert page.count("x[bold]") == 3  # of each run, and side by side


@pytest.mark.slow
def test_resume_of_a_finished_run_does_nothing_more(trained: tuple[Path, str], tmp_path: Path) -> None:
    run = shutil.copytree(trained[0], tmp_path / "copy")
    names = ("metrics.jsonl", "timings.jsonl", "config.yaml", "checkpoints/step-4/manifest.json")
    before = {name: (run / name).read_bytes() for name in names}
    answer = vigneron("resume", run)
    assert answer.code == 0, answer.err
    assert "already finished at step 4" in answer.out
    assert not re.search(r"^step ", answer.out, re.MULTILINE)
    assert {name: (run / name).read_bytes() for name in names} == before
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-4"]


@pytest.mark.slow
def test_resume_goes_on_from_the_newest_checkpoint(trained: tuple[Path, str], tmp_path: Path) -> None:
    run = shutil.copytree(trained[0], tmp_path / "copy")
    shutil.rmtree(run / "checkpoints" / "step-4")
    answer = vigneron("resume", run)
    assert answer.code == 0, answer.err
    assert [line.split()[1] for line in answer.out.splitlines() if line.startswith("step ")] == ["3/4", "4/4"]
    assert (run / "metrics.jsonl").read_bytes() == (trained[0] / "metrics.jsonl").read_bytes()


# ---------------------------------------------------------------------------------------------- in a script


def test_the_public_names_stay_what_they_are() -> None:
    """`vigneron.train` is the function, whatever was imported before."""
    for _ in range(2):
        assert package.train is train_in_python
        assert package.load_run is load_run
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = package.tarin
