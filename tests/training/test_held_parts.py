"""Planned bytes of weights and of the engine's copies against those of loaded models, by how the files store them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from support.memory_plans import config_of, weightless_llama
from support.tiny_models import byte_tokenizer, tiny_model
from support.zoo import zoo_config
from vigneron.config import Config
from vigneron.config.judges import LocalJudgeConfig
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.model_size import model_size
from vigneron.policy.stored import stored_weights
from vigneron.rollout.engine.sample import sampler_of
from vigneron.sources.local_judge import LocalBackend
from vigneron.training import held_parts
from vigneron.training.held_parts import HeldParts
from vigneron.training.memory_fit import Fitting
from vigneron.training.memory_plan import RunMemory

LORA = {"lora": {"rank": 2}}
NESTED = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)


def saved(folder: Path, model: Any) -> Path:
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def parts(config: Config) -> dict[str, int]:
    memory = RunMemory.of(config, 20)
    assert memory is not None
    return {part.name: part.bytes for part in memory.fixed(config).parts}


@pytest.mark.parametrize(
    ("stored", "model"),
    [
        (torch.bfloat16, LORA),
        (torch.float16, LORA),
        (torch.float32, LORA),
        (torch.float16, LORA | {"weights": "bfloat16"}),
        (torch.bfloat16, LORA | {"weights": "float32"}),
        (torch.float32, {}),
        (torch.float32, {"weights": "bfloat16"}),
    ],
)
def test_weights_and_copies_are_those_of_a_loaded_model(tmp_path: Path, stored: torch.dtype, model: Any) -> None:
    """A frozen base that bfloat16 would round is held in float32, and the engine has another copy of it."""
    config = config_of(saved(tmp_path, tiny_model("llama").to(stored)), model={"dtype": "bfloat16", **model})
    planned, policy = parts(config), policy_from_config(config)
    held = [(weight.nbytes, weight.requires_grad) for weight in policy.model.parameters()]
    if config.model.lora is None:
        assert planned["trained weights"] == sum(size for size, _ in held)
    else:
        assert planned["frozen base"] == sum(size for size, trained in held if not trained)
        assert planned["adapter"] == sum(size for size, trained in held if trained)
    copies: Any = sampler_of(policy)._model._copies  # type: ignore[attr-defined]
    assert planned["the engine's bfloat16 matrices"] == sum(copy.nbytes for copy, _ in copies)


def test_the_engine_copies_a_head_that_stays_in_float32(tmp_path: Path) -> None:
    """Gemma's, tied to an embedding that computes with its weight: half a gigabyte in Gemma 2 2B."""
    zoo_config("Gemma").save_pretrained(tmp_path)
    size = model_size(zoo_config("Gemma"))
    found = parts(config_of(tmp_path, model={"weights": "bfloat16"}))
    assert found["the engine's bfloat16 matrices"] == 2 * size.vocabulary * size.hidden


def test_a_base_that_is_stored_in_4_bits(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", tiny_model("llama").to(torch.bfloat16))
    packed = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=NESTED, dtype=torch.bfloat16, device_map="cpu"
    )
    saved(tmp_path / "packed", packed)
    model = LORA | {"dtype": "bfloat16"}
    as_stored = parts(config_of(tmp_path / "packed", model=model))
    assert as_stored == parts(config_of(plain, model=model | {"weights": "4bit"}))
    assert as_stored["frozen base"] < parts(config_of(plain, model=model))["frozen base"]


def test_without_files_the_config_names_the_dtype(tmp_path: Path) -> None:
    folder, config = str(weightless_llama(tmp_path)), zoo_config("Llama")
    assert stored_weights(folder, config).bfloat16
    config.dtype = torch.float16
    assert not stored_weights(folder, config).bfloat16


def test_rounding_is_offered_for_a_base_that_is_not_in_bfloat16(tmp_path: Path) -> None:
    for stored, offered in ((torch.float16, True), (torch.bfloat16, False)):
        folder = saved(tmp_path / str(stored), tiny_model("llama").to(stored))
        config = config_of(folder, model=LORA)
        memory = RunMemory.of(config, 20)
        assert memory is not None
        values = {change.value for some in Fitting(memory, config)._sets for change in some}
        assert ("bfloat16" in values) == offered


def test_ranks_share_the_matrices_of_layers_alone(tmp_path: Path) -> None:
    """Embedding, head and norms are whole on each of 2 ranks, a base is in float32, and the engine gathers it."""
    linear, rest = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24), 2 * 260 * 16 + 5 * 16
    folder = weightless_llama(tmp_path)
    found = parts(config_of(folder, scale={"shard": 2}))
    assert found["trained weights"] == found["gradients"] == 4 * (linear / 2 + rest)
    assert found["optimizer moments"] == 8 * (linear / 2 + rest)
    assert "the engine's gathered matrices" not in found
    adapted = parts(config_of(folder, scale={"shard": 2}, model=LORA))
    adapter = 2 * 2 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3)
    assert adapted["frozen base"] == 4 * (linear / 2 + rest)
    assert adapted["the engine's bfloat16 matrices"] == 2 * (linear + 260 * 16)
    assert adapted["the engine's gathered matrices"] == 4 * (linear + adapter)


def test_another_model_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over hundreds of changes would build the reward model for each."""
    folder = weightless_llama(tmp_path)
    built: list[Any] = []
    monkeypatch.setattr(held_parts, "local_config", lambda name: built.append(name) or zoo_config("Llama"))
    config = config_of(folder, reward={"kind": "model", "model": str(folder)})
    memory = RunMemory.of(config, 20)
    assert memory is not None
    first, second = ({part.name: part.bytes for part in memory.fixed(config).parts} for _ in range(2))
    assert first == second
    assert first["reward model"] > 0
    assert built == [str(folder)]


def test_a_judge_is_held_in_bfloat16_however_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded once, with a notice: in float32 there would be the engine's copies beside."""
    monkeypatch.setattr("vigneron.policy.device.has_bfloat16", lambda device: True)
    for number, stored in enumerate((torch.float16, torch.float32, torch.bfloat16)):
        folder = saved(tmp_path / str(number), tiny_model("llama").to(stored))
        config = LocalJudgeConfig(kind="local", model=str(folder))
        backend = LocalBackend(config, "source", "cpu", "reward.judge")
        policy = backend._model.policy
        copies: Any = sampler_of(policy)._model._copies  # type: ignore[attr-defined]
        loaded = [*policy.model.parameters(), *(copy for copy, _ in copies)]
        assert other_models(folder, reward=judged_by(folder)) == {"local judge": sum(w.nbytes for w in loaded)}
        name = {torch.float16: "F16", torch.float32: "F32"}.get(stored)
        said = f"reward.judge.model: '{folder}': its weights in {name} are rounded to bfloat16"
        assert backend.notice == (said if name else None)


def test_a_player_stored_in_float16_is_held_in_float32_with_copies(tmp_path: Path) -> None:
    folder = saved(tmp_path, tiny_model("llama").to(torch.float16))
    game = {"kind": "game", "class": "a:B", "players": {"other": {"kind": "local", "model": str(folder)}}}
    linear = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24) + 260 * 16
    whole = sum(weight.numel() for weight in tiny_model("llama").parameters())
    assert other_models(folder, environment=game) == {"frozen player": 4 * whole + 2 * linear}


def judged_by(folder: Path) -> dict[str, Any]:
    return {"kind": "rubric", "file": "r.yaml", "judge": {"kind": "local", "model": str(folder)}}


def other_models(folder: Path, **changes: Any) -> dict[str, int]:
    held = HeldParts(config_of(folder, **changes), lambda lora, scorer: model_size(zoo_config("Llama")), engine=False)
    return {part.name: part.bytes for part in held.parts() if part.name in ("local judge", "frozen player")}
