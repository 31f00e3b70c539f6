"""Runs with weights held in bfloat16 or 4 bits: uninterrupted = stopped = killed, and exported as they were trained."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from support import fault_runs
from support.resuming import check_third_arm, drawing_reward, lose_optimizers
from support.tiny_models import byte_tokenizer, tiny_model
from support.tiny_runs import final_state, tiny_recipe, write_data
from vigneron import api
from vigneron.commands.export import export
from vigneron.errors import UserError
from vigneron.policy.held_weights import is_quantised
from vigneron.policy.quantised import dequantised
from vigneron.recipe import check_config

SFT: dict[str, Any] = {"method": {"name": "sft"}, "optimizer": {"actor_lr": 1e-2}, "reward": {"kind": "binary"}}
SFT |= {"group_size": 1, "max_new_tokens": 8, "steps": 4, "save_every": 2, "prompts_per_step": 2, "eval_every": 0}
GRPO: dict[str, Any] = {
    "method": {"name": "grpo", "kl": {"coefficient": 1e-3}},
    "optimizer": {"actor_lr": 1e-3},
    "reward": {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"},
    "steps": 4,
    "save_every": 2,
    "prompts_per_step": 2,
    "eval_every": 0,
}
FOUR_BIT = {"weights": "4bit", "lora": {"rank": 2}, "dtype": "float32"}
HELD = {"dtype": "bfloat16", "lora": {"rank": 2}}
WHOLE = {"dtype": "bfloat16", "weights": "bfloat16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model("llama").to(torch.bfloat16).save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def recipe_of(folder: Path, place: Path, method: dict[str, Any], model: dict[str, Any], **more: Any) -> dict[str, Any]:
    model = {"name": str(folder), "device": "cpu", **model}
    return tiny_recipe(folder, write_data(place), **method, model=model, **more)


@pytest.mark.slow
@pytest.mark.parametrize("model", [FOUR_BIT, HELD, WHOLE], ids=["4bit", "held", "bfloat16"])
def test_three_arms(tmp_path: Path, folder: Path, model: dict[str, Any]) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(folder, tmp_path, GRPO, model)))
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    (tmp_path / "other").mkdir()
    check_third_arm(whole, tmp_path / "other", lose_optimizers)
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 3)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)


@pytest.mark.slow
def test_a_run_in_4_bits_saves_its_adapter_and_exports_what_it_trained(tmp_path: Path, folder: Path) -> None:
    config = check_config(recipe_of(folder, tmp_path, SFT, FOUR_BIT) | {"steps": 2}, "tiny")
    trained = api.train(config, name="run", runs=tmp_path)
    saved = load_file(trained.folder / "checkpoints" / "step-2" / "adapter_model.safetensors")
    assert all(".lora_" in name for name in saved)
    exported = export(trained.folder, tmp_path / "exported")
    assert exported.difference < 1e-4
    model = AutoModelForCausalLM.from_pretrained(exported.path)
    for name, module in trained.policy.causal.named_modules():
        if hasattr(module, "get_delta_weight"):
            assert is_quantised(module.get_base_layer())
            expected = dequantised(module.get_base_layer()) + module.get_delta_weight("default").detach()
            assert torch.allclose(model.get_parameter(f"{name}.weight"), expected, rtol=0, atol=1e-6), name


@pytest.mark.slow
def test_a_run_in_bfloat16_exports_its_checkpoint(tmp_path: Path, folder: Path) -> None:
    config = check_config(recipe_of(folder, tmp_path, SFT, WHOLE) | {"steps": 2}, "tiny")
    trained = api.train(config, name="run", runs=tmp_path)
    saved = load_file(trained.folder / "checkpoints" / "step-2" / "model.safetensors")
    assert {(w.dtype, w.dim()) for w in saved.values()} == {(torch.bfloat16, 2), (torch.float32, 1)}
    exported = load_file(export(trained.folder, tmp_path / "exported").path / "model.safetensors")
    assert exported.keys() == saved.keys()
    for name, weight in saved.items():
        assert torch.equal(exported[name], weight.float()), name
    again = api.load_run(trained.folder)
    assert all(torch.equal(w.float(), saved[name].float()) for name, w in again.policy.model.named_parameters())


@pytest.mark.parametrize(
    ("model", "more", "line"),
    [
        ({"weights": "4bit"}, {}, "`weights: 4bit` trains only through an adapter: set `lora`"),
        (
            {"weights": "bfloat16", "dtype": "float32"},
            {},
            "`weights: bfloat16` with `dtype: float32` would save nothing",
        ),
        ({"weights": "4bit", "lora": {"rank": 2}, "chat": "minted"}, {}, "`chat: minted` adds embeddings"),
        (FOUR_BIT, {"scale": {"shard": 2}}, "`model.weights: 4bit` is not supported with sharding: set `scale.shard`"),
        (
            FOUR_BIT,
            {"scale": {"sampling": {"kind": "vllm", "url": "http://127.0.0.1:8000"}}},
            "`model.weights: 4bit` is not supported with vLLM",
        ),
    ],
    ids=["no-lora", "float32", "minted", "shard", "vllm"],
)
def test_what_cannot_be_held_is_refused(tmp_path: Path, folder: Path, model: Any, more: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_config(recipe_of(folder, tmp_path, GRPO, model) | more, "tiny")


def test_bfloat16_weights_need_products_in_bfloat16(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vigneron.policy.device.has_bfloat16", lambda device: False)
    config = check_config(recipe_of(folder, tmp_path, SFT, {"weights": "bfloat16"}), "tiny")
    with pytest.raises(UserError, match="needs products in bfloat16, which 'cpu' does not support"):
        api.train(config, name="run", runs=tmp_path)
