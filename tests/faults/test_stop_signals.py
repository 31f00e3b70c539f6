"""Row 3: SIGINT, SIGTERM and SIGHUP finish the step, save and exit with the shell's code; another stops it."""

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from support import fault_runs
from support.servers import catches
from support.tiny_runs import final_state
from vigneron import api
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of
from vigneron.training.checkpoint.read import checkpoints

pytestmark = pytest.mark.slow


def wait_for(process: BaseProcess, log: Path, text: str) -> None:
    while not log.exists() or text not in log.read_text():
        assert process.is_alive(), f"no '{text}' in {log.read_text() if log.exists() else 'nothing'}"
        time.sleep(0.01)


def start(tmp_path: Path, recipe: Path) -> tuple[Path, BaseProcess]:
    log = tmp_path / "log"
    words = ["train", str(recipe), "--name", "run", "--runs", str(tmp_path)]
    return log, fault_runs.started(fault_runs.command, str(log), words)


SLOW_REWARD = """
import time
from pathlib import Path
asked = -2  # the trial before a run
def slow(completions, **columns):
    global asked
    asked += 1
    if asked <= 0:
        return [0.0 for _ in completions]
    print("reward asked,", asked, flush=True)
    while asked == {step} and not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return [0.0 for _ in completions]
"""


@pytest.fixture(autouse=True)
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


def slow_recipe(tmp_path: Path, model: Path, step: int, **changes: object) -> Path:
    """In this step the reward waits for a file named `go`."""
    (tmp_path / "slow_reward.py").write_text(SLOW_REWARD.format(step=step))
    reward = {"kind": "python", "function": "slow_reward:slow"}
    return fault_runs.write_recipe(tmp_path, model, "grpo", eval_every=0, reward=reward, **changes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_row_3_the_step_is_finished_and_saved_and_the_run_goes_on_later(
    tmp_path: Path, tiny_folder: Path, number: signal.Signals
) -> None:
    recipe = slow_recipe(tmp_path, tiny_folder, 3, steps=8, save_every=0)
    log, process = start(tmp_path, recipe)
    wait_for(process, log, "reward asked, 3")
    os.kill(process.pid, number)
    wait_for(process, log, "stopping after this step")
    (tmp_path / "go").touch()
    assert fault_runs.ended(process) == 128 + number
    folder = tmp_path / "run"
    (saved,) = checkpoints(folder / "checkpoints")
    done = RunFolder.open(folder).metrics()[-1]["step"]
    assert saved.name == f"step-{done}"
    assert (status_of(folder).state, status_of(folder).error) == ("stopped", None)
    assert done == 3
    assert f"saved after step {done}: resume with `vigneron resume" in log.read_text()

    api.resume(folder)
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    assert final_state(folder) == final_state(whole)


def test_row_3_a_signal_in_the_last_step_leaves_a_report(tmp_path: Path, tiny_folder: Path) -> None:
    log, process = start(tmp_path, slow_recipe(tmp_path, tiny_folder, 2, steps=2, save_every=0))
    wait_for(process, log, "reward asked, 2")
    os.kill(process.pid, signal.SIGTERM)
    wait_for(process, log, "stopping after this step")
    (tmp_path / "go").touch()
    assert fault_runs.ended(process) == 143
    assert (tmp_path / "run" / "report.html").is_file()
    assert status_of(tmp_path / "run").state == "finished"
    assert "saved after step 2: it was the last" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_row_3_a_second_signal_stops_at_once(tmp_path: Path, tiny_folder: Path, number: signal.Signals) -> None:
    recipe = slow_recipe(tmp_path, tiny_folder, 1, steps=5)
    log, process = start(tmp_path, recipe)
    wait_for(process, log, "reward asked, 1")
    os.kill(process.pid, number)
    wait_for(process, log, "stopping after this step")
    while catches(process, signal.SIGTERM):  # it may say so before Python has called its handler
        time.sleep(0.01)
    os.kill(process.pid, number)
    assert fault_runs.ended(process) in (-number, 128 + number, 1)
    assert not checkpoints(tmp_path / "run" / "checkpoints")
    assert "Traceback" not in log.read_text()
    assert status_of(tmp_path / "run").state in ("stopped", "killed")
