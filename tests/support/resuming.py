"""Runs that are stopped and resumed: with every part of their state, and without one of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_runs import final_state
from vigneron import api
from vigneron.methods import build_method
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore
from vigneron.training import loop
from vigneron.training.callbacks import Silent
from vigneron.training.setup.resume import resume_run

TrainedOnce = Callable[[str, Callable[[Path], Any]], Path]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> TrainedOnce:
    """`trained_once(name, config_in)`: the folder of an uninterrupted run, trained once for all of its cases."""
    done: dict[str, Path] = {}

    def folder_of(name: str, config_in: Callable[[Path], Any]) -> Path:
        if name not in done:
            place = tmp_path_factory.mktemp("whole")
            done[name] = api.train(config_in(place), name="whole", runs=place).folder
        return done[name]

    return folder_of


def kept_samples(folder: Path) -> list[Any]:
    """All samples of a run, in order."""
    store = SampleStore(folder, read_only=True)
    found = [store.page(step=step, kind=kind) for kind in ("train", "eval") for step in store.steps(kind)]
    store.close()
    return found


class Stopped(Exception):
    """Raised out of a run in the step after its first checkpoint."""


class StopInStep(Silent):
    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, run: Any, *_: Any) -> None:
        if run.step == self._step:
            run.output.saver.wait()
            raise Stopped


def check_third_arm(whole: Path, place: Path, lose: Any) -> None:
    """Resumed from the first of its two checkpoints without a part of the state: another run. With all parts: the same.

    With all parts it is trained anew until then, so that the same config gives the same run; without one, copied.
    """
    config = RunFolder.open(whole).config()
    first = config.save_every
    assert config.steps == 2 * first
    if lose is lose_nothing:
        with pytest.raises(Stopped):
            api.train(config, name="other", runs=place, view=StopInStep(first + 1))
    else:
        shutil.copytree(whole, place / "other")
        shutil.rmtree(place / "other" / "checkpoints" / f"step-{config.steps}")
    run = resume_run(RunFolder.open(place / "other"), build_method, view=Silent())
    assert run.step == first
    lose(run)
    loop.train(run, Silent())
    run.close()
    assert (final_state(place / "other") == final_state(whole)) == (lose is lose_nothing)


def lose_optimizers(run: Any) -> None:
    for player in run.method.update.optimized:
        player.optimizer.state.clear()


def lose_critic(run: Any) -> None:
    torch.nn.init.zeros_(run.method.update.weights()["critic.head.linear.weight"])


def lose_controller(run: Any) -> None:
    run.method.update.controller.coefficient = 1e-3


def lose_schedule(run: Any) -> None:
    run.method.update.done = 0


def lose_rng(run: Any) -> None:
    torch.manual_seed(0)


def lose_nothing(run: Any) -> None: ...


def drawing_reward(completions: list[str], **columns: Any) -> list[float]:
    """Draws from torch's generator: its state has to be restored too."""
    return [len(text) + float(torch.rand(())) for text in completions]
