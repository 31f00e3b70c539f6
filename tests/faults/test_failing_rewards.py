"""Rows 12 and 14 of the fault table: a run whose reward fails is saved after the last step that it finished."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support import fault_runs
from support.resuming import TrainedOnce, kept_samples
from support.tiny_runs import final_state
from vigneron import api
from vigneron.batch import Batch
from vigneron.data.curriculum import Curriculum
from vigneron.errors import UserError
from vigneron.rewards.apply import ApplyReward
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints
from vigneron.training.checkpoint.write import BEST
from vigneron.training.method import Metrics
from vigneron.training.run import Run

pytestmark = pytest.mark.slow


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
    assert kept_samples(failed) == kept_samples(whole)


def test_a_reward_that_fails_while_a_curriculum_measures_losses_loses_no_step(
    tmp_path: Path, roomy_folder: Path, trained_once: TrainedOnce
) -> None:
    """A round of three steps ends with the third; the rows' losses are then measured anew, with their rewards."""

    def write(place: Path) -> str:
        curriculum = {"by": "loss", "every": 3}
        return str(fault_runs.write_recipe(place, roomy_folder, "grpo", curriculum=curriculum, save_every=6))

    whole, failed = trained_once("grpo by loss", write), tmp_path / "failed"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="the endpoint does not answer"):
        api.train(str(whole.parent / "recipe.yaml"), name="failed", runs=tmp_path, view=BreaksAfterStep3(patch))
    assert [path.name for path in checkpoints(failed / "checkpoints")] == ["step-3"]
    api.resume(failed)
    assert final_state(failed) == final_state(whole)


class BreaksInEvaluation(BreaksAfterStep3):
    """The evaluation that is due after a step is made, with all that it draws and counts, and then raises."""

    after = 3

    def step(self, run: Any, *_: Any) -> None:
        evaluate = Run.evaluate

        def fails(run: Run) -> Metrics:
            evaluate(run)
            raise UserError("the endpoint does not answer")

        if run.step == self.after - 1:
            self.patch.setattr(Run, "evaluate", fails)


class BreaksInTheLastEvaluation(BreaksInEvaluation):
    after = 6


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("grpo", BreaksInEvaluation),
        ("grape", BreaksInEvaluation),
        ("dpo, sampled", BreaksInEvaluation),
        ("grpo", BreaksInTheLastEvaluation),
    ],
)
def test_an_evaluation_that_fails_loses_nothing(
    method: str, kind: type[BreaksInEvaluation], tmp_path: Path, roomy_folder: Path, trained_once: TrainedOnce
) -> None:
    """A resume runs that evaluation again: the run ends as if nothing had failed."""

    def write(place: Path) -> str:
        return str(fault_runs.write_recipe(place, roomy_folder, method, save_every=3, keep_best="eval/reward"))

    whole = trained_once(f"{method}, the best kept", write)
    failed = tmp_path / "failed"
    with pytest.MonkeyPatch.context() as patch:
        view = kind(patch)
        with pytest.raises(UserError, match="the endpoint does not answer"):
            api.train(str(whole.parent / "recipe.yaml"), name="failed", runs=tmp_path, view=view)
    assert view.notices[-1] == f"saved after step {kind.after}: resume with `vigneron resume {failed}`"
    last = RunFolder.open(failed).metrics()[-1]
    assert last["step"] == kind.after
    assert not any(name.startswith("eval/") for name in last)
    api.resume(failed)
    assert final_state(failed) == final_state(whole)
    assert (failed / "checkpoints" / BEST).read_text() == (whole / "checkpoints" / BEST).read_text()
    assert kept_samples(failed) == kept_samples(whole)


class Own(Curriculum):
    """A user's: what it changes in `at` is not known."""


class BreaksWithOwnCurriculum(BreaksAfterStep3):
    def step(self, run: Any, *_: Any) -> None:
        run.curriculum.__class__ = Own
        super().step(run)


NOTES_DROPPED = {"method": {"name": "grpo", "resample": 1}, "curriculum": {"by": "success"}}


@pytest.mark.parametrize(("kind", "changes"), [(BreaksWithOwnCurriculum, {}), (BreaksAfterStep3, NOTES_DROPPED)])
def test_a_curriculum_that_may_have_changed_is_not_saved(
    tmp_path: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, changes: dict[str, Any]
) -> None:
    """A user's own, or one that is told of the groups that dynamic sampling drops."""
    recipe, view = fault_runs.write_recipe(tmp_path, roomy_folder, "grpo", **changes), kind(monkeypatch)
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
