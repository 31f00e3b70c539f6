"""`vigneron compare`: real tiny runs, killed, stopped and gone on with; nothing is trained twice."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import fault_runs
from support.command_line import Answer, vigneron, write_jsonl
from vigneron import api
from vigneron.commands.compare_plan import LONGEST_NAME, default_name
from vigneron.report.terminal import TerminalView
from vigneron.run_store.folder import RunFolder


def killed_in_compare(run: str, step: int, words: list[str]) -> None:
    """The command line in a process of its own, which kills itself right after a step of one run: no handler runs."""
    shown = TerminalView.step

    def step_and_kill(view: Any, *shown_words: Any) -> None:
        shown(view, *shown_words)
        if view._title == run and shown_words[0].step == step:
            shown_words[0].output.saver.wait()  # the checkpoint before is whole
            os.kill(os.getpid(), signal.SIGKILL)

    TerminalView.step = step_and_kill  # type: ignore[method-assign]
    vigneron(*words)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Path, Path]:
    """Algorithm 1 on the binary reward, and SFT, which has no reward while it trains."""
    folder = tmp_path_factory.mktemp("recipes")
    rows = [f'{{"prompt": "{letter}", "answer": "{letter.upper()}"}}' for letter in "abcdef"]
    data = str(write_jsonl(folder / "rows.jsonl", rows))
    common: dict[str, Any] = {
        "model": {"name": str(tiny_folder), "device": "cpu"},
        "data": {"train": data, "held_out": data},
        "steps": 6,
        "prompts_per_step": 2,
        "max_new_tokens": 2,
        "eval_every": 3,
        "save_every": 2,
    }
    paths = folder / "rl.yaml", folder / "sft.yaml"
    own: list[dict[str, Any]] = [
        {"method": {"name": "actor_critic"}, "reward": {"kind": "binary"}, "group_size": 2},
        {"method": {"name": "sft"}},
    ]
    for path, keys in zip(paths, own, strict=True):
        path.write_text(yaml.safe_dump(common | keys), encoding="utf-8")
    return paths


NAMES = ("rl-seed-0", "rl-seed-1", "sft-seed-0", "sft-seed-1")
"""In the order they are trained."""


@pytest.fixture(scope="module")
def whole(recipes: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """Two recipes and two seeds, trained without interruption. Tests read it; those that write take a copy."""
    runs = tmp_path_factory.mktemp("whole")
    answer = vigneron("compare", *recipes, "--seeds", 2, "--runs", runs)
    assert answer.code == 0, answer.err
    return runs / "compare-rl-sft", answer


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIGNERON_RUNS", raising=False)
    return tmp_path


def written(folder: Path) -> dict[str, tuple[int, bytes]]:
    """When and what: a run that was trained again has a new time, even if it came out the same."""
    locks = (".lock", "-shm", "-wal")  # SQLite's readers make the last two
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(locks)]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def one_line(answer: Answer, *parts: str) -> None:
    assert answer.code == 2, answer
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1, answer.err
    for part in parts:
        assert part in answer.err, (part, answer.err)


# ---------------------------------------------------------------------------------------------- from start to end


@pytest.mark.slow
def test_a_comparison_is_a_folder_of_runs(whole: tuple[Path, Answer]) -> None:
    folder, answer = whole
    assert sorted(p.name for p in folder.iterdir()) == [
        "compare.csv",
        "compare.html",
        "compare.svg",
        "intervals.csv",
        "intervals.svg",
        *NAMES,
    ]
    for name in NAMES:
        config = RunFolder.open(folder / name).config()
        assert (config.recipe, config.seed) == (name.split("-")[0], int(name[-1]))
    started = [line for line in answer.out.splitlines() if line.startswith(NAMES)]
    assert started == [f"{name} ({i} of 4 to train)" for i, name in enumerate(NAMES, start=1)]
    assert re.search(r"rl \(2 seeds\) +sft \(2 seeds\) *$", answer.out, re.MULTILINE)
    assert re.search(r"^ +episodes +24 ± 0 +12 ± 0 *$", answer.out, re.MULTILINE)  # 6 steps of 2 × 2, and of 2
    files = ("compare.svg", "compare.html", "compare.csv", "intervals.svg", "intervals.csv")
    assert answer.out.endswith("".join(f"wrote   {folder / file}\n" for file in files))
    line = re.search(r"^ +accuracy +rl − sft +\S+ \[.+\](.+)paired by 6 rows and 2 seeds *$", answer.out, re.MULTILINE)
    assert line is not None
    assert re.fullmatch(r" +[├─●┼┆┤ ]+ [+−][\d.]+, [+−][\d.]+ +", line[1])  # drawn, and each seed's
    page = (folder / "compare.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "<td>sft-seed-1</td>" in page


@pytest.mark.slow
def test_its_figures_are_the_runs(whole: tuple[Path, Answer]) -> None:
    folder, _ = whole
    with (folder / "compare.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["arm"], row["figure"]): row for row in csv.DictReader(file)}
    logged = [RunFolder.open(folder / name).metrics() for name in NAMES]
    rewards = [sum(record["reward"] for record in run[-5:]) / 5 for run in logged[:2]]
    assert float(rows["rl", "reward"]["mean"]) == pytest.approx(sum(rewards) / 2)
    assert float(rows["rl", "reward"]["max"]) == pytest.approx(max(rewards))
    for arm, runs in (("rl", logged[:2]), ("sft", logged[2:])):
        for figure, place in (("eval/accuracy_before", 0), ("eval/accuracy", -1)):
            values = [run[place]["eval/accuracy"] for run in runs]
            assert float(rows[arm, figure]["mean"]) == pytest.approx(sum(values) / 2)
    assert ("sft", "reward") not in rows
    assert ("sft", "loss/nll") in rows


@pytest.mark.slow
def test_again_trains_nothing(whole: tuple[Path, Answer], recipes: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(whole[0], tmp_path / "compare-rl-sft")
    shutil.rmtree(folder / "rl-seed-0" / "checkpoints")  # to save space: what was logged is still there
    before = {name: written(folder / name) for name in NAMES}
    answer = vigneron("compare", *recipes, "--seeds", 2, "--runs", tmp_path)
    assert answer.code == 0, answer.err
    assert "to train" not in answer.out
    assert {name: written(folder / name) for name in NAMES} == before
    for file in ("compare.svg", "compare.csv", "compare.html", "intervals.svg", "intervals.csv"):
        assert (folder / file).read_bytes() == (whole[0] / file).read_bytes()

    fewer = vigneron("compare", *recipes, "--runs", tmp_path)  # the first seed alone
    assert fewer.code == 0, fewer.err
    assert re.search(r"^ +rl +sft *$", fewer.out, re.MULTILINE)


@pytest.mark.slow
def test_killed_in_the_middle_the_same_command_goes_on(
    whole: tuple[Path, Answer], recipes: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("compare", *recipes, "--seeds", 2, "--runs", tmp_path)
    code = fault_runs.exit_code(killed_in_compare, "rl-seed-1", 5, [str(word) for word in words])
    assert code == -signal.SIGKILL
    folder = tmp_path / "compare-rl-sft"
    assert sorted(path.name for path in folder.iterdir()) == list(NAMES[:2])
    finished = written(folder / "rl-seed-0")
    # A second kill came while the next run's folder was being made.
    (folder / "sft-seed-0" / "data").mkdir(parents=True)
    (folder / "sft-seed-0" / "config.yaml").write_text("half a con", encoding="utf-8")

    answer = vigneron(*words)
    assert answer.code == 0, answer.err
    assert [line for line in answer.out.splitlines() if line.startswith(NAMES)] == [
        f"{name} ({i} of 3 to train)" for i, name in enumerate(NAMES[1:], start=1)
    ]
    assert "resuming after step 4 of 6" in answer.out
    assert re.findall(r"^step (\d+)/6", answer.out, re.MULTILINE) == [*"56", *"0123456", *"0123456"]
    assert written(folder / "rl-seed-0") == finished
    for name in NAMES:  # bit for bit what was never killed
        for file in ("metrics.jsonl", "config.yaml", "checkpoints/step-6/model.safetensors"):
            assert (folder / name / file).read_bytes() == (whole[0] / name / file).read_bytes(), (name, file)
    assert (folder / "compare.svg").read_bytes() == (whole[0] / "compare.svg").read_bytes()


@pytest.mark.slow
def test_ctrl_c_saves_the_step_and_leaves_with_130(
    recipes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", *recipes, "--runs", tmp_path, "--name", "mine", "save_every=0")
    shown = TerminalView.step

    def step_and_interrupt(self: TerminalView, run: Any, *others: Any) -> None:
        shown(self, run, *others)
        if run.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(TerminalView, "step", step_and_interrupt)
        stopped = vigneron(*words)
    assert (stopped.code, stopped.err) == (130, "")
    assert "run the same `vigneron compare` again to resume" in stopped.out
    folder = tmp_path / "mine"
    assert [path.name for path in (folder / "rl-seed-0" / "checkpoints").iterdir()] == ["step-3"]
    assert not (folder / "compare.csv").exists()
    answer = vigneron(*words)
    assert answer.code == 0, answer.err
    assert "resuming after step 3 of 6" in answer.out


# ---------------------------------------------------------------------------------------------- runs as they are


@pytest.mark.slow
@pytest.mark.usefixtures("no_training")
def test_runs_and_folders_of_runs_are_taken_as_they_are(whole: tuple[Path, Answer], tmp_path: Path) -> None:
    before = written(whole[0])
    answer = vigneron("compare", whole[0], "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert (tmp_path / "out" / "compare.csv").read_bytes() == (whole[0] / "compare.csv").read_bytes()
    some = [whole[0] / name for name in ("sft-seed-1", "rl-seed-0")]
    answer = vigneron("compare", *some, "--runs", tmp_path)
    assert answer.code == 0, answer.err
    assert re.search(r"^ +sft +rl *$", answer.out, re.MULTILINE)
    assert (tmp_path / "compare-sft-seed-1-rl-seed-0" / "compare.html").is_file()
    assert written(whole[0]) == before


@pytest.mark.slow
def test_a_recipe_beside_a_run(whole: tuple[Path, Answer], recipes: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("steps=2", "eval_every=0", "seed=7")
    answer = vigneron("compare", recipes[1], whole[0] / "rl-seed-0", *words, "--runs", tmp_path, "--name", "x")
    assert answer.code == 0, answer.err
    assert [path.name for path in (tmp_path / "x").iterdir() if path.is_dir()] == ["sft-seed-7"]
    assert re.search(r"^ +steps +2 +6 *$", answer.out, re.MULTILINE)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: Any, **__: Any) -> None:
        pytest.fail("something was trained")

    monkeypatch.setattr(api, "train", reached)
    monkeypatch.setattr(api, "resume", reached)


# ---------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.usefixtures("no_training")
class TestRefused:
    @pytest.mark.slow
    def test_a_run_of_other_settings(
        self, whole: tuple[Path, Answer], recipes: tuple[Path, Path], tmp_path: Path
    ) -> None:
        folder = shutil.copytree(whole[0], tmp_path / "compare-rl-sft")
        before = written(folder)
        words = ("compare", *recipes, "--runs", tmp_path)
        changed = vigneron(*words, "optimizer.actor_lr=1e-4", "steps=9")
        one_line(changed, "rl-seed-0' was started with another config", "optimizer.actor_lr was 1e-05, is now 0.0001")
        assert written(folder) == before
        assert vigneron(*words, "about=else", "model.device=auto").code == 0

    def test_nothing_to_compare(self, elsewhere: Path) -> None:
        for words in ((), ("demo",), ("demo", "steps=3")):
            one_line(vigneron("compare", *words), "nothing to compare", "--seeds 2")
        assert list(elsewhere.iterdir()) == []

    @pytest.mark.slow
    def test_a_last_recipe_whose_endpoint_is_down(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        url = "http://127.0.0.1:9/v1"  # nobody is there
        reward = f"reward: {{kind: semantic, embedder: 'api:m', url: '{url}'}}"
        (elsewhere / "embedded.yaml").write_text(f"base: demo\n{reward}\n")
        (elsewhere / "asked.yaml").write_text(
            f"base: demo\nparent: {{kind: endpoint, model: m, url: '{url}', retries: 0}}\n"
        )
        one_line(vigneron("compare", "demo", "embedded.yaml"), "reward.embedder: 'm' at", "cannot be reached")
        one_line(vigneron("compare", "demo", "asked.yaml"), "parent: 'm' at", "cannot be reached")

    def test_unknown_recipe(self, elsewhere: Path) -> None:
        one_line(vigneron("compare", "demo", "pgsrm-antonym"), "unknown recipe", "did you mean 'pgsrm-antonyms'?")
        one_line(vigneron("compare", "demo", "missing.yaml"), "'missing.yaml'", "No such file")

    @pytest.mark.slow
    def test_two_identical_arms(self, elsewhere: Path, whole: tuple[Path, Answer], recipes: tuple[Path, Path]) -> None:
        one_line(vigneron("compare", "demo", "demo"), "'demo' and 'demo' have the same config and seed")
        copy = shutil.copy(recipes[0], elsewhere / "copy.yaml")
        one_line(vigneron("compare", recipes[0], copy), "rl-seed-0' and", "copy-seed-0' have the same config and seed")
        run = whole[0] / "rl-seed-1"
        one_line(vigneron("compare", run, run), "have the same config and seed")
        one_line(vigneron("compare", recipes[0], run, "seed=1"), "have the same config and seed")

    def test_two_recipes_of_one_name(self, elsewhere: Path) -> None:
        one_line(vigneron("compare", "demo", "pgsrm-antonyms", "recipe=x"), "are both named 'x'")

    @pytest.mark.slow
    def test_what_has_no_effect(self, whole: tuple[Path, Answer]) -> None:
        one_line(vigneron("compare", whole[0], "steps=3"), "'steps=3' has no effect without a recipe")
        one_line(vigneron("compare", whole[0], "--seeds", 3), "--seeds has no effect without a recipe")

    def test_a_folder_that_holds_no_runs(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (elsewhere / "empty").mkdir()
        (elsewhere / "file").write_text("", encoding="utf-8")
        one_line(vigneron("compare", "empty", "demo"), "'empty' is neither a recipe nor the folder of a run")
        one_line(vigneron("compare", "no/where", "demo"), "cannot read the folder 'no/where'", "No such file")
        one_line(vigneron("compare", "file", "demo"), "cannot read the folder 'file'", "Not a directory")

        readable = Path.iterdir

        def closed(path: Path) -> Any:
            if path.name == "empty":
                raise PermissionError(13, "Permission denied")
            return readable(path)

        monkeypatch.setattr(Path, "iterdir", closed)
        one_line(vigneron("compare", "empty", "demo"), "cannot read the folder 'empty'", "Permission denied")

    @pytest.mark.slow
    def test_a_run_without_metrics(self, whole: tuple[Path, Answer], tmp_path: Path) -> None:
        run = shutil.copytree(whole[0] / "rl-seed-0", tmp_path / "copy")
        (run / "metrics.jsonl").unlink()
        one_line(vigneron("compare", run, whole[0] / "sft-seed-0"), "copy' has no metrics yet")
        (run / "metrics.jsonl").write_bytes(b"\xff\n")
        one_line(vigneron("compare", run, whole[0] / "sft-seed-0"), "metrics.jsonl'", "line 1 is not JSON")

    def test_what_only_the_last_recipe_has_wrong(self, recipes: tuple[Path, Path], tmp_path: Path) -> None:
        """Found before the first one is trained."""
        bad = tmp_path / "bad.yaml"
        text = {**yaml.safe_load(recipes[0].read_text()), "reward": {"kind": "semantic", "embedder": "nosuch"}}
        bad.write_text(yaml.safe_dump(text), encoding="utf-8")
        one_line(vigneron("compare", recipes[0], bad, "--runs", tmp_path / "runs"), "reward.embedder", "nosuch")
        assert not (tmp_path / "runs").exists()

    @pytest.mark.slow
    def test_names_and_places(self, elsewhere: Path, recipes: tuple[Path, Path], whole: tuple[Path, Answer]) -> None:
        one_line(vigneron("compare", *recipes, "--name", "a/b"), "'a/b' is not a valid run name")
        one_line(vigneron("compare", recipes[0], "recipe=a/b", "--seeds", 2), "'a/b' is not a valid run name")
        (elsewhere / "file").write_text("", encoding="utf-8")
        one_line(vigneron("compare", whole[0], "--out", "file"), "cannot create the folder 'file'")
        (elsewhere / "runs" / "compare-rl-sft").mkdir(parents=True)
        (elsewhere / "runs" / "compare-rl-sft" / "rl-seed-0").write_text("", encoding="utf-8")
        one_line(vigneron("compare", *recipes), "cannot read the folder 'runs/compare-rl-sft/rl-seed-0'")
        one_line(vigneron("compare", recipes[0], "--seeds", 2, f"seed={2**63 - 1}"), "seed: should be less than")


def test_default_names_are_short_and_differ() -> None:
    assert default_name(["a", "b"]) == "compare-a-b"
    long = [default_name(["pgsrm-antonyms-paper", "pgsrm-antonyms-binary", f"and-a-third-one-{i}"]) for i in range(3)]
    assert len(set(long)) == 3
    assert all(len(name) <= LONGEST_NAME and name.startswith("compare-pgsrm-antonyms-paper") for name in long)


def test_a_bad_recipe_is_refused_before_anything_heavy_is_imported() -> None:
    code = """
import sys
from vigneron.errors import UserError
from vigneron.commands.compare_plan import plan_comparison
try:
    plan_comparison(["demo", "no-such-recipe"], seeds=None, runs=None, name=None, out=None)
except UserError:
    sys.exit(bool({"torch", "matplotlib", "transformers"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_the_verb_is_in_the_help() -> None:
    assert re.search(r"^  compare +Train recipes and compare them", vigneron("--help").out, re.MULTILINE)
