"""`vigneron validate` names what will happen with the recipe's model, without loading it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import vigneron
from support.tiny_runs import tiny_recipe, write_data
from support.zoo import zoo_config
from vigneron import api
from vigneron.policy.bundled import BUNDLED_TYPE, SMOLLM2, bundled_model_folder
from vigneron.recipe import check_config

GRPO: dict[str, Any] = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "optimizer": {"actor_lr": 1e-3}}
SFT: dict[str, Any] = {**GRPO, "method": {"name": "sft", "packing": True}, "group_size": 1}
ENGINE = "the engine samples; prompts are shared between completions in training"
SLOWER = (
    "transformers' generate samples, which is slower than the engine: it has recurrent layers; prompts are not shared"
)


def recipe_for(name: str, place: Path, changes: dict[str, Any]) -> Path:
    """Of a folder with a config and no weights."""
    zoo_config(name).save_pretrained(place / "model")
    file = place / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe(place / "model", write_data(place), **changes)))
    return file


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("Gemma 3", GRPO, f"(gemma3): {ENGINE}"),
        ("Mamba", GRPO, f"(mamba): {SLOWER}"),
        ("Qwen3-MoE", SFT, f"(qwen3_moe): in evaluation and chat {ENGINE}; rows are packed"),
        ("Llama 4", GRPO, f"(llama4): {ENGINE}; it is loaded as a text model"),
        ("BLOOM", SFT, "prompts are not shared between completions in training; `packing` has no effect"),
    ],
)
def test_what_happens_with_the_model(tmp_path: Path, name: str, changes: dict[str, Any], expected: str) -> None:
    answer = vigneron("validate", recipe_for(name, tmp_path, changes))
    assert answer.code == 0, answer.err
    assert expected in answer.out.splitlines()[-1]


@pytest.mark.parametrize(
    "name", ["Llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Qwen2", "Qwen3", "Gemma 2"))]
)
def test_a_config_alone_is_enough_for_the_plan(tmp_path: Path, name: str) -> None:
    """Without a file of a tokenizer transformers makes one that writes nothing, or one token. The longest prompt has 31
    characters, three of which are taken for a token."""
    zoo_config(name).save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": "a" * size, "answer": "b"}) + "\n" for size in (7, 31, 30))
    )
    recipe = {**GRPO, "data": {"train": str(tmp_path / "rows.jsonl")}, "group_size": 2, "steps": 2}
    recipe["model"] = {"name": str(tmp_path / "model"), "memory_gb": 24}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    answer = vigneron("validate", tmp_path / "tiny.yaml")
    assert answer.code == 0, answer.err
    assert "memory on a GPU of 24 GB, in GB, with prompts of up to 11 tokens" in answer.out


def test_the_bundled_model_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes half a minute."""
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe(Path(SMOLLM2), write_data(tmp_path), **GRPO)))
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    assert f"({BUNDLED_TYPE}): {ENGINE}" in answer.out
    assert not (tmp_path / "cache").exists()


def test_its_type_is_that_of_the_converted_model() -> None:
    assert json.loads((bundled_model_folder(SMOLLM2) / "config.json").read_text())["model_type"] == BUNDLED_TYPE


def test_a_model_that_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    zoo_config("OLMoE").save_pretrained(tmp_path / "model")
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 4)
    recipe = {
        "method": "reward_model",
        "model": str(tmp_path / "model"),
        "data": {"train": str(tmp_path / "pairs.jsonl")},
        "steps": 2,
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    answer = vigneron("validate", tmp_path / "tiny.yaml")
    assert answer.code == 2
    assert "transformers has no sequence-classification model for 'olmoe'" in answer.err


@pytest.mark.slow
def test_the_memory_of_a_run_on_a_gpu(tmp_path: Path) -> None:
    """Without weights; on a CPU nothing is said about it."""
    file = recipe_for("Llama", tmp_path, {**GRPO, "model": {"name": str(tmp_path / "model")}})
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    table = answer.out[answer.out.index("memory on a GPU of 80 GB, in GB, with prompts of up to ") :]
    assert "CUDA context and kernels             0.80  sampling, update" in table
    rows = [float(line[34:43]) for line in table.splitlines() if line.startswith("  ")]
    assert sum(rows[:-1]) >= rows[-1] - 0.005 * len(rows)  # what is too small to be shown is in one line
    assert table.splitlines()[-1].startswith("fits 8 GB as it is (")
    assert "memory on a GPU" not in vigneron("validate", file, "model.device=cpu").out


@pytest.mark.slow
@pytest.mark.parametrize(("method", "phases"), [("sft", {"evaluation, update", "update"}), ("dpo", {"update"})])
def test_a_run_that_samples_nothing_has_no_phase_for_it(tmp_path: Path, method: str, phases: set[str]) -> None:
    """SFT samples in its evaluations."""
    zoo_config("Llama").save_pretrained(tmp_path / "model")
    row = {"prompt": "a", "completion": "b"} if method == "sft" else {"prompt": "a", "chosen": "b", "rejected": "c"}
    files = {part: tmp_path / f"{part}.jsonl" for part in ("train", "held_out")}
    for part, file in files.items():
        rows = ({**row, "prompt": f"{part} {number}"} for number in range(4))
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    recipe = {
        "method": method,
        "model": str(tmp_path / "model"),
        "data": {part: str(file) for part, file in files.items()},
        "steps": 2,
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    answer = vigneron("validate", tmp_path / "tiny.yaml")
    assert answer.code == 0, answer.err
    table = [line for line in answer.out.splitlines() if line.startswith("  ")]
    lines, total = table[:-1], table[-1]
    assert {re.split(r"\d  ", line)[-1] for line in lines if re.search(r"\d  \w", line)} <= phases
    assert ("evaluation" in total) == (method == "sft")
    assert "sampling" not in answer.out.partition("memory on a GPU")[2]


@pytest.mark.slow
def test_what_to_change_for_the_limit_of_the_recipe(tmp_path: Path) -> None:
    file = recipe_for("Llama", tmp_path, {**GRPO, "model": {"name": str(tmp_path / "model"), "memory_gb": 0.5}})
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    assert "memory on a GPU of 0.5 GB, in GB" in answer.out
    assert re.search(r"  does not fit: 0.8\d GB are needed, 0.5 are there", answer.out)
    assert "to fit 0.5 GB: no settings are enough: choose a smaller model, or shorter texts" in answer.out
    assert answer.out.splitlines()[-1].startswith("fits 8 GB as it is, and more (")


def test_the_memory_of_a_model_that_is_not_here(tmp_path: Path) -> None:
    file = recipe_for("Llama", tmp_path, {**GRPO, "model": {"name": "nobody/nothing"}})
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    assert "memory: not estimated, because the config of 'nobody/nothing' is not on this machine" in answer.out


@pytest.mark.slow
def test_the_memory_of_a_reward_model_that_is_a_run(tmp_path: Path, tiny_folder: Path) -> None:
    """Its newest checkpoint is counted, as `train` would load it."""
    rows = [
        {"prompt": f"say {word}: ", "chosen": word, "rejected": word[::-1]} for word in ("hot", "cold", "up", "dry")
    ]
    pairs = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "held_out")}
    for name, first in (("train", rows[:2]), ("held_out", rows[2:])):
        Path(pairs[name]).write_text("".join(json.dumps(row) + "\n" for row in first))
    scorer = {
        "method": {"name": "reward_model"},
        "model": {"name": str(tiny_folder), "device": "cpu"},
        "data": pairs,
        "steps": 1,
        "prompts_per_step": 2,
    }
    run = api.train(check_config(scorer, "scorer"), name="scorer", runs=tmp_path).folder
    file = tmp_path / "tiny.yaml"
    recipe = tiny_recipe(tiny_folder, write_data(tmp_path), **GRPO)
    changes = {"reward": {"kind": "model", "model": str(run)}, "model": {"name": str(tiny_folder)}}
    file.write_text(yaml.safe_dump(recipe | changes))
    answer = vigneron("validate", file)
    assert answer.code == 0, answer.err
    assert re.search(r"to fit|fits 8 GB", answer.out)


@pytest.mark.slow
def test_the_plan_of_weights_that_only_a_gpu_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a suggestion of the plan itself, which may be read on a machine without a GPU."""
    monkeypatch.setattr("vigneron.policy.device.has_bfloat16", lambda device: False)
    model = {"name": str(tmp_path / "model"), "weights": "bfloat16"}
    answer = vigneron("validate", recipe_for("Llama", tmp_path, {**GRPO, "model": model}))
    assert answer.code == 2
    assert "fits 8 GB as it is" in answer.out
    assert "needs products in bfloat16, which 'cpu' does not support: leave it out on this machine" in answer.err


@pytest.mark.parametrize(
    ("quantised", "line"),
    [
        ({"quant_method": "gptq", "bits": 4}, "is quantised by GPTQ, which is not supported"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "is stored in 4 bits: set `model.lora`"),
    ],
)
def test_a_quantised_checkpoint_that_cannot_be_trained_is_not_called_valid(
    tmp_path: Path, quantised: dict[str, Any], line: str
) -> None:
    file = recipe_for("Llama", tmp_path, {**GRPO, "model": {"name": str(tmp_path / "model")}})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    answer = vigneron("validate", file)
    assert answer.code == 2
    assert line in answer.err
    assert "is valid" not in answer.out


def test_weights_of_another_shape_are_refused_before_they_are_loaded(tmp_path: Path, tiny_folder: Path) -> None:
    model = shutil.copytree(tiny_folder, tmp_path / "model")
    given = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**given, "intermediate_size": 2 * given["intermediate_size"]}))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe(model, write_data(tmp_path), **GRPO)))
    answer = vigneron("validate", file)
    assert answer.code == 2
    assert "has the shape [" in answer.err
    assert "but its config.json says [" in answer.err
