"""`vigneron validate` refuses what `vigneron train` would refuse on this machine, in one line and without weights."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from support.command_line import vigneron
from support.tiny_runs import tiny_recipe, write_data
from vigneron.policy.device import has_bfloat16

GRPO: dict[str, Any] = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "optimizer": {"actor_lr": 1e-3}}
Refused = Callable[..., str]


@pytest.fixture
def refused(tiny_folder: Path, tmp_path: Path) -> Refused:
    """The line of `validate`, which `train` has too; neither makes a run."""

    def line(*overrides: str, model: Path = tiny_folder) -> str:
        file = tmp_path / "tiny.yaml"
        file.write_text(yaml.safe_dump(tiny_recipe(model, write_data(tmp_path), **GRPO)))
        answers = [
            vigneron("validate", file, *overrides),
            vigneron("train", file, *overrides, "--runs", tmp_path / "runs"),
        ]
        assert [answer.code for answer in answers] == [2, 2], answers
        first, second = (answer.err.strip().removeprefix("error: ") for answer in answers)
        assert "\n" not in first
        assert first in second
        assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True
        return first

    return line


def test_vllm_without_a_gpu(refused: Refused) -> None:
    line = refused("scale.sampling.kind=vllm")
    assert "vLLM in the training process runs on 'cuda', but model.device is 'cpu'" in line


def test_4bit_without_its_library(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # an import of it fails
    line = refused("model.weights=4bit", "model.lora={}")
    assert "model.weights: 4bit needs bitsandbytes: pip install" in line


def test_a_base_that_is_stored_in_4_bits(refused: Refused, tiny_folder: Path, tmp_path: Path) -> None:
    """Refused before it is read, as `model.weights: 4bit` is."""
    model = tmp_path / "packed"
    shutil.copytree(tiny_folder, model)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (model / "config.json").write_text(json.dumps(config))
    assert "is stored in 4 bits: set `model.lora` and `model.weights: 4bit`" in refused(model=model)
    served = refused("model.lora={}", "scale.sampling={kind: vllm, url: 'http://127.0.0.1:1'}", model=model)
    assert "vLLM cannot take 4-bit weights" in served


def changed_copy(model: Path, place: Path, **changes: Any) -> Path:
    shutil.copytree(model, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))
    return place


PACKED = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def with_packed_file(place: Path) -> Path:
    """Headers alone matter here."""
    weights = load_file(place / "model.safetensors")
    weights["lm_head.weight.quant_state.bitsandbytes__nf4"] = torch.zeros(4, dtype=torch.uint8)
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    return place


def test_a_base_in_4_bits_without_the_library(
    refused: Refused, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    model = with_packed_file(changed_copy(tiny_folder, tmp_path / "packed", quantization_config=PACKED))
    line = refused("model.lora={}", model=model)
    assert line.startswith(f"model: '{model}' is stored in 4 bits, which needs bitsandbytes: pip install")


def test_a_base_in_4_bits_by_its_config_alone(refused: Refused, tiny_folder: Path, tmp_path: Path) -> None:
    model = changed_copy(tiny_folder, tmp_path / "packed", quantization_config=PACKED)
    assert "says that it is stored in 4 bits, and its files have plain weights" in refused("model.lora={}", model=model)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_attention_heads": 3}, "its config.json: Class validation error for validator"),
        ({"quantization_config": "yes"}, "its config.json has the quantization_config 'yes': expected a mapping"),
        ({"dtype": "float4"}, "its config.json: module 'torch' has no attribute 'float4'"),
    ],
    ids=["heads", "quantization-config", "dtype"],
)
def test_a_config_that_cannot_be_used(
    refused: Refused, tiny_folder: Path, tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    assert line in refused(model=changed_copy(tiny_folder, tmp_path / "model", **changes))


DISTILL = ("method={name: distill, parent: 'MODEL'}", "reward=null")
JUDGE = ("reward={kind: rubric, file: explanations, judge: {kind: local, model: 'MODEL'}}",)


@pytest.mark.parametrize(("overrides", "key"), [(DISTILL, "method.parent"), (JUDGE, "reward.judge.model")])
def test_a_parent_or_a_judge_that_cannot_be_loaded(
    refused: Refused, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...], key: str,
) -> None:  # fmt: skip
    def line(model: Path) -> str:
        return refused(*(each.replace("MODEL", str(model)) for each in overrides))

    gptq = changed_copy(tiny_folder, tmp_path / "gptq", quantization_config={"quant_method": "gptq", "bits": 4})
    assert line(gptq).startswith(f"{key}: '{gptq}' is quantised by GPTQ, which is not supported")
    cut = changed_copy(tiny_folder, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-100])
    assert line(cut).startswith(f"{key}: '{cut}': model.safetensors is damaged or incomplete")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    packed = with_packed_file(changed_copy(tiny_folder, tmp_path / "packed", quantization_config=PACKED))
    assert line(packed).startswith(f"{key}: '{packed}' is stored in 4 bits, which needs bitsandbytes")


def test_compile_without_a_gpu(refused: Refused) -> None:
    assert "model.compile: true needs a CUDA device" in refused("model.compile=true")


def test_a_shard_that_is_missing_or_cut_short(refused: Refused, tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "sharded"
    shutil.copytree(tiny_folder, model)
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "model-00002-of-00002.safetensors is missing, one of 2 files of weights" in refused(model=model)
    whole = (model / "model-00001-of-00002.safetensors").read_bytes()
    (model / "model-00002-of-00002.safetensors").write_bytes(whole[:-100])
    assert "model-00002-of-00002.safetensors is damaged or incomplete" in refused(model=model)


def test_weights_in_pickle_files(refused: Refused, tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "pickled"
    shutil.copytree(tiny_folder, model)
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"not read")
    assert "has its weights in pickle files alone, which can execute code" in refused(model=model)


def test_a_folder_without_weights_is_checked_and_noted(tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / "model.safetensors").unlink()
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe(model, write_data(tmp_path), **GRPO)))
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    assert "has a config and no weights: it can be checked and planned for, and not trained" in answer.out


@pytest.mark.slow
def test_emulated_bfloat16_is_noted_in_one_line(
    tiny_folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """torch warns of it by a page of C++ frames; where the CPU has the instructions, there is nothing to say."""
    file = tmp_path / "tiny.yaml"
    recipe = tiny_recipe(tiny_folder, write_data(tmp_path), **GRPO) | {"steps": 1, "eval_every": 0}
    recipe["model"] = {**recipe["model"], "dtype": "bfloat16"}
    file.write_text(yaml.safe_dump(recipe))
    answer = vigneron("train", file, "--runs", tmp_path / "runs")
    assert answer.code == 0, answer.err
    emulated = not has_bfloat16(torch.device("cpu"))
    said = " ".join(answer.out.split())
    assert ("this CPU has no bfloat16 products and emulates them, slowly" in said) == emulated
    assert not [str(one.message) for one in recwarn if "mkldnn" in str(one.message)]
    assert ("note: model.dtype: bfloat16: this CPU" in vigneron("validate", file).out) == emulated
