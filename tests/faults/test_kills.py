"""Rows 1 and 2 of the fault table: SIGKILL at a random step, and during a save."""

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from support import fault_runs
from support.resuming import TrainedOnce
from support.tiny_runs import final_state
from vigneron import api
from vigneron.batch import Batch
from vigneron.data.curriculum import Curriculum
from vigneron.errors import UserError
from vigneron.rewards.apply import ApplyReward
from vigneron.run_store.samples import SampleStore
from vigneron.run_store.status import status_of
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints

pytestmark = pytest.mark.slow


KILLED_TWICE = ("grpo", "ppo", "trpo, constraint", "grape", "a_star_po", "gad")
"""What a run keeps beside weights and moments: a controller, a critic, a trust region, questions met, samples that were
drawn before the first step, a discriminator. The other methods are killed once, either in a step or in a save."""


@pytest.mark.parametrize("method", fault_runs.METHODS)
def test_row_1_and_2_killed_at_any_step_and_then_in_a_save(
    method: str, tmp_path: Path, roomy_folder: Path, trained_once: TrainedOnce
) -> None:
    """Three arms: uninterrupted = resumed after kills, bit for bit; and where it was killed twice ≠ cold start."""
    whole = trained_once(method, lambda place: str(fault_runs.write_recipe(place, roomy_folder, method)))
    named = (str(whole.parent / "recipe.yaml"), str(tmp_path), "killed")
    killed, cold = tmp_path / "killed", tmp_path / "cold"

    draws = random.Random(method)
    step, delay = draws.choice((3, 4)), draws.uniform(0, 0.03)
    print(f"killed in step {step}, then {delay:.4f} s into a save")
    twice, odd = method in KILLED_TWICE, list(fault_runs.METHODS).index(method) % 2
    if twice or odd:
        assert fault_runs.exit_code(fault_runs.killed_at_step, *named, step) == -signal.SIGKILL
        check_killed(killed)
    if twice or not odd:
        assert fault_runs.exit_code(fault_runs.killed_in_save, *named, 4, delay) == -signal.SIGKILL
        check_killed(killed)
    if twice:
        shutil.copytree(killed, cold)

    api.resume(killed)
    assert final_state(killed) == final_state(whole)
    assert samples(killed) == samples(whole)
    assert not list(killed.rglob("*.draft"))
    assert status_of(killed).state == "finished"

    if twice:
        api.resume(cold, weights_only=True)
        assert final_state(cold) != final_state(whole)


class BreaksAfterStep3(Silent):
    """From then on, an endpoint does not answer: a reward is worked out, counted, and then raises."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def step(self, run: Any, *_: Any) -> None:
        score = ApplyReward.__call__

        def fails(apply: ApplyReward, batch: Batch) -> Batch:
            score(apply, batch)
            raise UserError("the endpoint does not answer")

        if run.step == 3:
            self.patch.setattr(ApplyReward, "__call__", fails)


FAILING = ("grpo", "grape", "ppo", "reinforce, running mean", "dpo, sampled", "rejection_sampling", "a_star_po", "gad")


@pytest.mark.parametrize("method", FAILING)
def test_a_reward_that_fails_loses_no_step(
    method: str, tmp_path: Path, roomy_folder: Path, trained_once: TrainedOnce
) -> None:
    """Checkpoints are due after every second step; the reward fails in the fourth. What it has drawn and counted until
    then is set back: the run goes on from the third step as if nothing had failed."""
    whole = trained_once(method, lambda place: str(fault_runs.write_recipe(place, roomy_folder, method)))
    failed = tmp_path / "failed"
    with pytest.MonkeyPatch.context() as patch:
        view = BreaksAfterStep3(patch)
        with pytest.raises(UserError, match="the endpoint does not answer"):
            api.train(str(whole.parent / "recipe.yaml"), name="failed", runs=tmp_path, view=view)
    assert view.notices[-1] == f"saved after step 3: resume with `vigneron resume {failed}`"
    assert status_of(failed).state == "failed"
    assert [path.name for path in checkpoints(failed / "checkpoints")][-1] == "step-3"
    api.resume(failed)
    assert final_state(failed) == final_state(whole)
    assert samples(failed) == samples(whole)


class Own(Curriculum):
    """A user's: what it changes in `at` is not known."""


class BreaksWithOwnCurriculum(BreaksAfterStep3):
    def step(self, run: Any, *_: Any) -> None:
        run.curriculum.__class__ = Own
        super().step(run)


def test_a_state_that_may_have_changed_is_not_saved(
    tmp_path: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, view = fault_runs.write_recipe(tmp_path, roomy_folder, "grpo"), BreaksWithOwnCurriculum(monkeypatch)
    with pytest.raises(UserError, match="the endpoint does not answer"):
        api.train(str(recipe), name="failed", runs=tmp_path, view=view)
    assert [path.name for path in checkpoints(tmp_path / "failed" / "checkpoints")] == ["step-2"]
    assert view.notices[-1].startswith("saved after step 2: resume with")


class DamagesAfterStep3(Silent):
    def step(self, run: Any, *_: Any) -> None:
        if run.step == 3:
            next(weight for _, weight in run.policy.trainable()).data.fill_(torch.nan)


def test_damaged_weights_are_not_saved(tmp_path: Path, roomy_folder: Path) -> None:
    recipe = fault_runs.write_recipe(tmp_path, roomy_folder, "grpo")
    with pytest.raises(UserError, match="its weights are damaged"):
        api.train(str(recipe), name="damaged", runs=tmp_path, view=DamagesAfterStep3())
    assert [path.name for path in checkpoints(tmp_path / "damaged" / "checkpoints")] == ["step-2"]


def check_killed(folder: Path) -> None:
    assert status_of(folder).state == "killed"
    assert checkpoints(folder / "checkpoints"), "what was saved before the kill is there"


def samples(folder: Path) -> list[Any]:
    store = SampleStore(folder, read_only=True)
    found = [store.page(step=step, kind=kind) for kind in ("train", "eval") for step in store.steps(kind)]
    store.close()
    return found
