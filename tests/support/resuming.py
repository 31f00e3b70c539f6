"""Runs that are stopped and resumed: with every part of their state, and without one of them."""

import shutil
from pathlib import Path
from typing import Any

import torch

from support.tiny_runs import final_state
from vigneron import api
from vigneron.methods import build_method
from vigneron.run_store.folder import RunFolder
from vigneron.training import loop
from vigneron.training.callbacks import Silent
from vigneron.training.setup.start import resume_run

# Trains, and kills itself with SIGKILL in the middle of the given step: no handler runs, nothing is flushed.
KILLED = """
import os, signal, sys
from vigneron import api

recipe, runs, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Killer:
    def notice(self, text): pass
    def step(self, run, metrics, batch, seconds):
        if run.step == step:
            run.output.saver.wait()  # the checkpoint before is whole
            os.kill(os.getpid(), signal.SIGKILL)
api.train(recipe, name="killed", runs=runs, view=Killer())
"""


def lose_optimizers(run: Any) -> None:
    for player in run.method.update.optimized:
        player.optimizer.state.clear()


def lose_critic(run: Any) -> None:
    torch.nn.init.zeros_(run.method.critic.head.linear.weight)


def lose_controller(run: Any) -> None:
    run.method.update.controller.coefficient = 1e-3


def lose_schedule(run: Any) -> None:
    run.method.update.done = 0


def lose_rng(run: Any) -> None:
    torch.manual_seed(0)


def lose_nothing(run: Any) -> None: ...


def drawing_reward(completions: list[str], **columns: Any) -> list[float]:
    return [len(text) + float(torch.rand(())) for text in completions]


def check_third_arm(config: Any, runs: Path, lose: Any) -> None:
    whole = api.train(config, name="whole", runs=runs).folder
    other = api.train(config, name="other", runs=runs).folder
    shutil.rmtree(other / "checkpoints" / "step-8")
    run = resume_run(RunFolder.open(other), build_method, view=Silent())
    assert run.step == 4
    lose(run)
    loop.train(run, Silent())
    run.close()
    assert (final_state(other) == final_state(whole)) == (lose is lose_nothing)
