"""Runs of architectures whose checkpoints have other names than the model: uninterrupted = stopped = killed."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import fault_runs
from support.resuming import check_third_arm, drawing_reward, lose_optimizers
from support.tiny_runs import final_state, tiny_recipe, write_data
from support.zoo import zoo_folder
from vigneron import api

GRPO: dict[str, Any] = {
    "method": {"name": "grpo", "kl": {"coefficient": 1e-3, "adaptive": {"target": 0.01}}},
    "optimizer": {"actor_lr": 1e-3, "schedule": "cosine", "warmup_steps": 2},
    "reward": {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"},
    "steps": 4,
    "save_every": 2,
    "prompts_per_step": 2,
    "eval_every": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [("GPT-NeoX, Pythia", {}), ("Qwen3-MoE", {}), ("Qwen3-MoE", {"lora": {"rank": 2}})],
    ids=["Pythia", "Qwen3-MoE", "LoRA on Qwen3-MoE"],
)
def test_three_arms(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    folder = zoo_folder(name, tmp_path)
    model = {"name": str(folder), "device": "cpu", "dtype": "float32", **changes}
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe(folder, write_data(tmp_path), **GRPO, model=model)))
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    (tmp_path / "other").mkdir()
    check_third_arm(whole, tmp_path / "other", lose_optimizers)
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 3)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)
