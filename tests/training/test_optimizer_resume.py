"""Runs with weights in bfloat16, 8-bit moments, moments or the reference in host memory: uninterrupted = stopped =
killed."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from support import fault_runs
from support.resuming import check_third_arm, drawing_reward, lose_optimizers
from support.tiny_runs import final_state, tiny_recipe, write_data
from vigneron import api

RUN: dict[str, Any] = {
    "method": {"name": "grpo"},
    "reward": {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"},
    "steps": 4,
    "save_every": 2,
    "prompts_per_step": 2,
    "eval_every": 0,
    "microbatch_tokens": 32,  # several microbatches, whose gradients are summed
}
KINDS: dict[str, dict[str, Any]] = {
    "8 bits": {"kind": "adamw_8bit"},
    "offloaded": {"offload": True},
    "reference": {"offload_reference": True},
    "all": {"weights": "bfloat16", "kind": "adamw_8bit", "offload": True, "offload_reference": True},
}


def recipe_in(place: Path, folder: Path, options: dict[str, Any]) -> Path:
    weights = options.get("weights", "auto")
    model = {"name": str(folder), "weights": weights, "dtype": "bfloat16" if weights == "bfloat16" else "auto"}
    model["offload_reference"] = options.get("offload_reference", False)
    optimizer = {key: value for key, value in options.items() if key in ("kind", "offload")}
    optimizer |= {"actor_lr": 1e-3, "schedule": "cosine", "warmup_steps": 2}
    path = place / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(folder, write_data(place), **RUN, model=model, optimizer=optimizer)))
    return path


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them on a GPU")
@pytest.mark.parametrize("kind", ["8 bits", "offloaded", "all"])
def test_three_arms(tmp_path: Path, tiny_folder: Path, kind: str) -> None:
    """`test_held_weights_runs.py` has weights in bfloat16 alone."""
    options = KINDS[kind]
    recipe = recipe_in(tmp_path, tiny_folder, options)
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    last = whole / "checkpoints" / "step-4"
    moments = load_file(last / "state" / "tensors.safetensors")
    (codes,) = (t for name, t in moments.items() if name.endswith("embed_tokens.weight.exp_avg"))
    assert codes.dtype == (torch.uint8 if options.get("kind") == "adamw_8bit" else torch.float32)
    weights = load_file(last / "model.safetensors")
    held = torch.bfloat16 if "weights" in options else torch.float32
    assert weights["model.embed_tokens.weight"].dtype == held
    (tmp_path / "other").mkdir()
    check_third_arm(whole, tmp_path / "other", lose_optimizers)
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 3)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)


@pytest.mark.slow
def test_offloading_changes_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    states = []
    for name, options in (("here", {}), *((kind, KINDS[kind]) for kind in ("offloaded", "reference"))):
        (tmp_path / name).mkdir()
        recipe = recipe_in(tmp_path / name, tiny_folder, options)
        states.append(final_state(api.train(str(recipe), name=name, runs=tmp_path / name).folder))
    for part in states[0]:
        if part != "scalars":  # has the config
            assert states[0][part] == states[1][part] == states[2][part], part
