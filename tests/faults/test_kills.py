"""Rows 1 and 2 of the fault table: SIGKILL at a random step, and during a save."""

import random
import shutil
import signal
from pathlib import Path

import pytest

from support import fault_runs
from support.resuming import TrainedOnce, kept_samples
from support.tiny_runs import final_state
from vigneron import api
from vigneron.run_store.status import status_of
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
    assert kept_samples(killed) == kept_samples(whole)
    assert not list(killed.rglob("*.draft"))
    assert status_of(killed).state == "finished"

    if twice:
        api.resume(cold, weights_only=True)
        assert final_state(cold) != final_state(whole)


def check_killed(folder: Path) -> None:
    assert status_of(folder).state == "killed"
    assert checkpoints(folder / "checkpoints"), "what was saved before the kill is there"
