"""Checkpoints that cannot be loaded: one line each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.tiny_models import byte_tokenizer, tiny_model
from vigneron.errors import UserError
from vigneron.policy.load import load_policy
from vigneron.policy.stored import check_shapes, check_weight_files

WEIGHTS = "model.safetensors"


def config_with(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def matrices_as(dtype: torch.dtype) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        save_file(
            {n: w.to(dtype) if w.dim() > 1 else w for n, w in weights.items()}, folder / WEIGHTS, {"format": "pt"}
        )

    return change


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def without_a_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    tiny_model("llama").save_pretrained(folder, max_shard_size="10KB")
    (folder / "model-00002-of-00004.safetensors").unlink()


def cut_to(size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:size]) and None


def as_a_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n")


def with_half_an_index(folder: Path) -> None:
    without_a_shard(folder)
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": ')


def with_nan(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.layers.0.mlp.up_proj.weight"].fill_(float("nan"))
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def quantised(**given: Any) -> Callable[[Path], None]:
    return config_with(quantization_config=given)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (config_with(intermediate_size=32), r"weight has the shape \[16, 24\], but its config.json says \[16, 32\]"),
        (config_with(num_hidden_layers=3, layer_types=None), "has no weights for model.layers.2.input_layernorm.weig"),
        (without_a_tensor, "has no weights for model.layers.0.mlp.up_proj.weight: its files do not fit its con"),
        (without_a_shard, "model-00002-of-00004.safetensors is missing, one of 4 files of weights: download it again"),
        (cut_to(10_000), r"model.safetensors is damaged or incomplete \(.*\): download it again"),
        (cut_to(100), r"model.safetensors is damaged or incomplete \(.*\): download it again"),
        (cut_to(0), r"model.safetensors is damaged or incomplete \(.*\): download it again"),
        (as_a_pointer, "model.safetensors is a pointer of Git LFS, without weights: download it again"),
        (with_half_an_index, "model.safetensors.index.json is damaged or incomplete: download it again"),
        (with_nan, "the weights contain NaN or infinite numbers"),
        (matrices_as(torch.float8_e4m3fn), "stores lm_head.weight as F8_E4M3, and its config.json does not say how"),
        (matrices_as(torch.int8), "stores lm_head.weight as I8, and its config.json does not say how"),
        (matrices_as(torch.int32), "stores lm_head.weight as I32, and its config.json does not say how"),
        (matrices_as(torch.bool), "stores lm_head.weight as BOOL, and its config.json does not say how"),
        (matrices_as(torch.complex64), "stores lm_head.weight as C64, and its config.json does not say how"),
        (config_with(num_attention_heads=3), r"its config.json: .*: ValueError: The hidden size \(16\)"),
        (config_with(quantization_config="yes"), "its config.json has the quantization_config 'yes': expected a mapp"),
        (config_with(dtype="float4"), "its config.json: module 'torch' has no attribute 'float4'"),
        (quantised(quant_method="gptq", bits=4), "is quantised by GPTQ, which is not supported: use the original"),
        (quantised(quant_method="awq", bits=4), "is quantised by AWQ, which is not supported: use the original"),
        (quantised(quant_method="fp8"), "is quantised by FP8, which is not supported: use the original"),
        (quantised(quant_method="bitsandbytes", load_in_8bit=True), "is quantised by 8-bit bitsandbytes, which is not"),
    ],
    ids=["shape", "layers", "tensor", "shard", "cut", "cut-header", "empty", "lfs",
         "index", "nan", "fp8", "int8", "int32", "bool", "complex", "heads",
         "quantization-config", "dtype", "gptq", "awq", "quantised-fp8", "bitsandbytes-8bit"],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_loaded_gets_one_line(
    damage: Callable[[Path], None], line: str, tmp_path: Path
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=line) as caught:
        load_policy(str(tmp_path), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (config_with(intermediate_size=32), r"weight has the shape \[16, 24\], but its config.json says \[16, 32\]"),
        (config_with(num_hidden_layers=3, layer_types=None), "has no weights for model.layers.2.input_layernorm.weig"),
        (without_a_tensor, "has no weights for model.layers.0.mlp.up_proj.weight: its files do not fit its con"),
    ],
    ids=["shape", "layers", "tensor"],
)
def test_shapes_are_compared_without_loading(damage: Callable[[Path], None], line: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    assert check_shapes(str(tmp_path)) == []
    damage(tmp_path)
    with pytest.raises(UserError, match=line):
        check_shapes(str(tmp_path))


def test_buffers_of_integers_are_no_weights(tmp_path: Path) -> None:
    """As position ids, or tables of experts by token."""
    tiny_model("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    weights["model.position_ids"] = torch.arange(8)[None]
    weights["model.layers.0.mlp.expert_of_token"] = torch.zeros(8, 2, dtype=torch.int32)
    save_file(weights, tmp_path / WEIGHTS, {"format": "pt"})
    assert check_weight_files(str(tmp_path), allow_pickle=False) is None


def test_a_model_whose_shapes_cannot_be_compared_is_noted(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    config_with(hidden_act="nope")(tmp_path)
    (note,) = check_shapes(str(tmp_path))
    assert "its shapes are not compared with its config.json before it is loaded: KeyError: 'nope'" in note


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_floats_are_loaded_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model("llama").to(dtype)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), device="cpu")
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, model.get_parameter(name).float()), name


def test_layers_beyond_those_of_the_config_are_named(tmp_path: Path) -> None:
    """transformers leaves them out without a word; other weights without a place are those of encoders."""
    tiny_model("llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    weights["vision.patch.weight"] = torch.ones(2, 2)
    save_file(weights, tmp_path / WEIGHTS, {"format": "pt"})
    notices: list[str] = []
    load_policy(str(tmp_path), notice=notices.append)
    assert notices == []
    config_with(num_hidden_layers=1)(tmp_path)
    load_policy(str(tmp_path), notice=notices.append)
    (line,) = notices
    assert check_shapes(str(tmp_path)) == notices
    assert "its files have layers that its config.json does not have, which are left out: 9 weights, as" in line
    assert "model.layers.1.input_layernorm.weight" in line
