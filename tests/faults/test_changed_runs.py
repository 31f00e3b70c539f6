"""Row 9: a run whose config or data were changed shows the difference, and goes on only if that is allowed."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from support import fault_runs
from support.command_line import vigneron
from support.tiny_runs import Listener, final_state
from vigneron import api
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import kept_notices
from vigneron.training.callbacks import Silent
from vigneron.training.setup.resume import resume_run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Of six steps four are done."""
    place = tmp_path_factory.mktemp("stopped")
    recipe = fault_runs.write_recipe(place, tiny_folder, "grpo", eval_every=0, optimizer={"actor_lr": 1e-2})
    folder = api.train(str(recipe), "steps=4", name="run", runs=place).folder
    assert api.resume(folder, "steps=6").step == 6
    shutil.rmtree(folder / "checkpoints" / "step-6")
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def edit(run: Path, **changes: object) -> None:
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


@pytest.mark.slow
def test_row_9_an_edited_config_is_shown_and_refused(run: Path) -> None:
    edit(run, seed=1, optimizer={"actor_lr": 0.5})
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError) as said:
        api.resume(run)
    assert "seed was 0, is 1" in str(said.value)
    assert "optimizer.actor_lr was 0.01, is 0.5" in str(said.value)
    assert "--allow-changes" in str(said.value).splitlines()[-1]
    assert (run / "metrics.jsonl").read_bytes() == before
    listener = Listener()
    assert api.resume(run, allow_changes=True, view=listener).step == 6
    assert "seed was 0, is 1" in listener.notices


@pytest.mark.slow
def test_row_9_the_command_that_allows_changes_has_the_overrides(run: Path) -> None:
    with pytest.raises(UserError) as said:
        api.resume(run, "optimizer.actor_lr=0.5", "steps=5")
    command = shlex.split(str(said.value).splitlines()[-1].partition("`")[2].rstrip("`"))
    assert command[:4] == ["vigneron", "resume", str(run), "--allow-changes"]
    assert {"optimizer.actor_lr=0.5", "steps=5"} <= set(command[4:])
    assert vigneron(*command[1:]).code == 0
    config = RunFolder.open(run).config()
    assert (config.optimizer.actor_lr, config.steps) == (0.5, 5)


@pytest.mark.slow
def test_the_command_that_resumes_names_a_device_that_is_not_the_runs_own(run: Path) -> None:
    own = yaml.safe_load((run / "config.yaml").read_text())["model"]
    resumed = resume_run(RunFolder.open(run), build_method, view=Silent())
    resumed.close()
    assert resumed.resume_command == f"vigneron resume {run}"
    edit(run, model={**own, "device": "mps"})
    resumed = resume_run(RunFolder.open(run), build_method, device="cpu", view=Silent())
    resumed.close()
    assert resumed.resume_command == f"vigneron resume {run} --device cpu"


@pytest.mark.slow
def test_row_9_edited_rows_are_shown_and_refused(run: Path) -> None:
    path = run / "data" / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2]["answer"] = "huge"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    with pytest.raises(UserError, match=r"train.jsonl had 10 rows, has 11; the first row that differs is row 3"):
        api.resume(run)
    assert api.resume(run, allow_changes=True).step == 6


@pytest.mark.slow
def test_row_9_another_model_or_method_never_goes_on(run: Path) -> None:
    edit(run, method={"name": "sft"}, reward={"kind": "binary"}, group_size=1)
    with pytest.raises(UserError, match=r"method.name was 'grpo', is 'sft': it cannot be changed on resume"):
        api.resume(run, allow_changes=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_more_steps_that_lift_the_learning_rate_are_noticed_once(tiny_folder: Path, tmp_path: Path, shape: str) -> None:
    """The notice has the rates that the metrics have, before and after; nothing is noticed without a change."""
    optimizer = {"actor_lr": 1e-3, "schedule": shape, "warmup_steps": 1}
    recipe = fault_runs.write_recipe(tmp_path, tiny_folder, "grpo", eval_every=0, optimizer=optimizer)
    folder = api.train(str(recipe), "method=grpo", "steps=4", name="run", runs=tmp_path).folder
    listener = Listener()
    api.resume(folder, view=listener)
    assert not any("schedule" in text for text in listener.notices)
    api.resume(folder, "steps=7", view=listener)
    rates = [record["learning_rate"] for record in RunFolder.open(folder).metrics() if record["step"]]
    noticed = [text for text in listener.notices if "learning rate" in text]
    if shape == "constant":
        assert not noticed
        return
    assert rates[4] > rates[3]
    (text,) = noticed
    assert f"`optimizer.schedule: {shape}` now runs over 7 steps" in text
    assert f"from {rates[3]:.3g} at the start of step 4 to {rates[4]:.3g} at the start of step 5" in text
    assert text in [notice.text for notice in kept_notices(folder)]


@pytest.mark.slow
def test_a_run_goes_past_its_planned_end_and_is_the_longer_run(run: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """With a constant learning rate, and so planned for six steps or for eight."""
    listener = Listener()
    api.resume(run, "steps=8", "save_every=3", view=listener)
    assert "steps was 4, is 8" in listener.notices  # when step 4 was saved
    assert RunFolder.open(run).config().steps == 8
    recipe = fault_runs.write_recipe(tmp_path, tiny_folder, "grpo", eval_every=0, optimizer={"actor_lr": 1e-2})
    whole = api.train(str(recipe), "steps=8", "save_every=3", name="whole", runs=tmp_path).folder
    assert final_state(run)["model.safetensors"] == final_state(whole)["model.safetensors"]
    assert final_state(run)["metrics"] == final_state(whole)["metrics"]
    for override, why in (
        ("steps=3", "3 is less than the 8 steps"),
        ("seed=4", "seed was 0"),
        ("sted=4", "did you mean"),
    ):
        with pytest.raises(UserError, match=why):
            api.resume(run, override)
    assert RunFolder.open(run).config().steps == 8
