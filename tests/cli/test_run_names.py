"""A run is named by its folder, or by its name in the folder of runs, wherever a run is asked for."""

from pathlib import Path

import pytest

from support.command_line import vigneron, write_recipe
from vigneron.commands.compare_plan import plan_comparison
from vigneron.errors import UserError
from vigneron.run_store.folder import run_path
from vigneron.training.setup.resolve import newest_weights


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A folder with two runs in `my-runs`."""
    folder = tmp_path_factory.mktemp("named")
    recipe = write_recipe(folder, tiny_folder, steps=1, data={"train": str(folder / "rows.jsonl")})
    for name in ("first", "second"):
        done = vigneron("train", recipe, "--name", name, "--runs", folder / "my-runs")
        assert done.code == 0, done.err
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIGNERON_RUNS", str(place / "my-runs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", "runs/first"])
def test_verbs_take_names(place: Path, tmp_path: Path, name: str) -> None:
    assert run_path(name) == place / "my-runs" / "first"
    for words in (("show", name), ("report", name, "second", "--out", tmp_path / "both.html"), ("label", name)):
        answer = vigneron(*words)
        assert "there is no run" not in answer.err
        assert "no such file" not in answer.err.lower()
        assert answer.code == (2 if words[0] == "label" else 0), answer.err  # there is nothing to compare
    plan = plan_comparison([name, "second"], seeds=None, runs=None, name=None, out=None)
    assert [path.name for path in plan.given] == ["first", "second"]


@pytest.mark.slow
def test_recipes_take_names_of_runs_for_models(place: Path, tiny_folder: Path, tmp_path: Path) -> None:
    checkpoint = place / "my-runs" / "first" / "checkpoints" / "step-1"
    assert newest_weights("first") == newest_weights("runs/first") == str(checkpoint.resolve())
    assert newest_weights("gpt2") == "gpt2"
    recipe = write_recipe(tmp_path, tiny_folder, steps=1)
    assert f"model {checkpoint.resolve()}" in vigneron("validate", recipe, "model.name=first").out


@pytest.mark.slow
def test_what_is_here_comes_before_a_run_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    assert run_path("first") == Path("first")
    assert newest_weights("first") == str((tmp_path / "first").resolve())


@pytest.mark.slow
def test_a_run_is_no_recipe(place: Path) -> None:
    line = f"'first' is a run, not a recipe: give '{place / 'my-runs' / 'first' / 'config.yaml'}', and model.name=first"
    assert line in vigneron("sample", "first").err


@pytest.mark.slow
def test_a_wrong_name_is_compared_with_those_of_the_runs(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = place / "my-runs"
    assert f"there is no run 'frist' in '{runs}' (did you mean 'first'?)" in vigneron("show", "frist").err
    assert f"there is no run 'frist' in '{runs}'" in vigneron("label", "frist", "--out", "pairs.jsonl").err
    at_step = vigneron("show", runs / "first" / "checkpoints" / "step-1").err
    assert f"is a checkpoint: name its run, '{runs / 'first'}' (eval, chat and export take --step 1)" in at_step
    with pytest.raises(UserError, match=r"there is no run 'runs/secnd': did you mean 'second'\?"):
        newest_weights("runs/secnd")
    monkeypatch.chdir(place)
    monkeypatch.setenv("VIGNERON_RUNS", str(tmp_path))  # the runs were written with `--runs my-runs`
    assert "(did you mean 'my-runs/first'?); name a run elsewhere by its path" in vigneron("show", "first").err
