"""Checkpoints are written under the hub's names, and read back into a model that has others."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.zoo import zoo_folder
from vigneron.errors import UserError
from vigneron.policy.load import Lora, load_policy
from vigneron.policy.model import Policy
from vigneron.training.checkpoint.read import load_weights
from vigneron.training.checkpoint.snapshot import take_snapshot
from vigneron.training.checkpoint.write import save_checkpoint


def trained(policy: Policy) -> Policy:
    """With other weights than its folder has."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight))
    return policy


def load(folder: Path, lora: Lora | None = None) -> Policy:
    return load_policy(str(folder), device="cpu", dtype="float32", lora=lora)


@pytest.mark.parametrize(
    ("name", "hub_name"),
    [
        ("GPT-NeoX, Pythia", "embed_out.weight"),
        ("Qwen3-MoE", "model.layers.1.mlp.experts.3.up_proj.weight"),
        ("Mixtral", "model.layers.0.block_sparse_moe.experts.0.w1.weight"),
        ("OLMoE", "model.layers.0.mlp.experts.2.down_proj.weight"),
        ("Qwen3-Next", "model.layers.0.mlp.experts.1.gate_proj.weight"),
        ("Granite 4 (hybrid)", "model.layers.0.block_sparse_moe.router.layer.weight"),
        ("Qwen3.5", "model.language_model.layers.1.self_attn.q_proj.weight"),
        ("Gemma 3", "language_model.model.layers.0.mlp.up_proj.weight"),
        ("Llama 4", "model.layers.0.self_attn.q_proj.weight"),
        ("Llama", "model.layers.0.self_attn.q_proj.weight"),
    ],
)
def test_a_checkpoint_loads_here_and_in_transformers(tmp_path: Path, name: str, hub_name: str) -> None:
    folder = zoo_folder(name, tmp_path)
    policy = trained(load(folder))
    saved = save_checkpoint(tmp_path, policy, take_snapshot(policy, 1, {}, {}))
    assert hub_name in load_file(saved / "model.safetensors")
    again = load(folder)
    load_weights(saved, again)
    expected = policy.causal.state_dict()
    for own in (again.causal.state_dict(), type(policy.causal).from_pretrained(saved).state_dict()):
        assert own.keys() == expected.keys()
        assert all(torch.equal(own[key], expected[key]) for key in expected)


def test_an_adapter_on_experts_is_read_back(tmp_path: Path) -> None:
    folder = zoo_folder("Qwen3-MoE", tmp_path)
    policy, again = trained(load(folder, Lora(rank=2))), load(folder, Lora(rank=2))
    expected = dict(policy.trainable())
    assert any("experts" in name for name in expected)
    saved = save_checkpoint(tmp_path, policy, take_snapshot(policy, 1, {}, {}))
    load_weights(saved, again)
    assert all(torch.equal(weight, expected[name]) for name, weight in again.trainable())


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = zoo_folder("Qwen3-MoE", tmp_path)
    policy = load(folder)
    saved = save_checkpoint(tmp_path, policy, take_snapshot(policy, 1, {}, {}))
    weights = load_file(saved / "model.safetensors")
    name = "model.layers.0.self_attn.q_norm.weight"
    for changed in ({name: torch.zeros(3)}, {name: weights[name], "other.weight": torch.zeros(2)}):
        save_file({**weights, **changed}, saved / "model.safetensors")
        with pytest.raises(UserError, match=r"does not fit the model: (model.layers.0.self_attn.q_norm|other).weight"):
            load_weights(saved, policy)
    del weights[name]
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(UserError, match=f"does not fit the model: {name}"):
        load_weights(saved, policy)
