"""A step whose groups all have equal rewards: no pass through the model, the update that passes would have made."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support import fault_runs
from support.resuming import check_third_arm, lose_optimizers
from support.small_batch import make_batch
from support.tiny_models import tiny_policy
from support.tiny_runs import final_state, tiny_recipe, write_data
from vigneron import api
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.training.parts import Parts

VARIED, FLAT = [1.0, 0.0, 0.5, 0.7], [0.3, 0.3, 1.0, 1.0]


def method_of(coefficient: float) -> tuple[Any, list[torch.nn.Parameter], list[int]]:
    """GRPO on a tiny model, its weights, and the number of passes of each step so far (filled as it trains)."""
    policy = tiny_policy("llama", dtype=torch.float64)
    recipe = {
        "method": {"name": "grpo", "kl": {"coefficient": coefficient}},
        "data": {"task": "antonyms"},
        "reward": {"kind": "binary"},
        "optimizer": {"actor_lr": 1e-2, "weight_decay": 0.1},
        "group_size": 2,
        "max_new_tokens": 4,
        "successive_kl_every": 1,
    }
    method: Any = build_method(Parts.of(check_config(recipe, "test"), policy, Reference.of(policy), lambda b: b))
    passes: list[int] = []

    def count(*_: Any) -> None:
        passes[-1] += 1

    policy.causal.get_input_embeddings().register_forward_hook(count)
    return method, list(policy.model.parameters()), passes


def one_step(method: Any, passes: list[int], rewards: list[float]) -> dict[str, float]:
    batch = make_batch([3, 3, 2, 2], [2, 4, 3, 1], rewards_B=torch.tensor(rewards, dtype=torch.float64))
    batch = batch.with_samples(completion_BT=batch.samples.completion_BT % 50, behaviour_BT=torch.full((4, 4), -3.0))
    passes.append(0)
    return method.update(method.advantage(batch))


def test_it_makes_no_pass_and_the_same_update() -> None:
    """AdamW's moments and weight decay move the weights in both, by the same bits."""
    ends = []
    for skipping in (True, False):
        method, weights, passes = method_of(0.0)
        if not skipping:
            method.update.idle = None
        logged = [one_step(method, passes, rewards) for rewards in (VARIED, FLAT, FLAT, VARIED)]
        assert [count > 0 for count in passes] == ([True, False, False, True] if skipping else [True] * 4)
        assert all(metrics["loss/policy"] == metrics["grad_norm/actor"] == 0.0 for metrics in logged[1:3])
        assert logged[1]["learning_rate"] == logged[0]["learning_rate"]
        assert ("entropy" in logged[1], "kl_previous" in logged[1]) == (not skipping, not skipping)
        assert {"entropy", "kl_previous"} <= set(logged[3])
        assert method.update.done == 4
        ends.append([weight.detach().clone() for weight in weights])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_kl_term_has_a_gradient_and_needs_the_passes() -> None:
    method, _, passes = method_of(0.5)
    logged = [one_step(method, passes, rewards) for rewards in (VARIED, FLAT)]
    assert passes[1] > 0
    assert logged[1]["grad_norm/actor"] > 0
    assert {"entropy", "kl", "kl_previous"} <= set(logged[1])


def sometimes_flat(completions: list[str], **columns: Any) -> list[float]:
    """In about half of the steps all rewards are equal; which ones follows from torch's generator."""
    drawn = torch.rand(len(completions) + 1)
    return (drawn[1:] * (drawn[0] < 0.5)).tolist()


def recipe_in(place: Path, folder: Path) -> Path:
    reward = {"kind": "python", "function": f"{sometimes_flat.__module__}:sometimes_flat"}
    run = {"steps": 8, "prompts_per_step": 2, "eval_every": 0, "reward": reward, "optimizer": {"actor_lr": 1e-3}}
    method = {"name": "grpo", "kl": {"coefficient": 0.0}}
    path = place / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(folder, write_data(place), method=method, **run)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_run_with_flat_steps_resumes_exactly(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = recipe_in(tmp_path, tiny_folder)
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    flat = [record["frac_reward_zero_std"] == 1.0 for record in RunFolder(whole).metrics()]
    for part in (flat[:4], flat[4:]):  # before the checkpoint that is resumed, and after it
        assert set(part) == {True, False}
    (tmp_path / "other").mkdir()
    check_third_arm(whole, tmp_path / "other", lose_optimizers)
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 6)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)
