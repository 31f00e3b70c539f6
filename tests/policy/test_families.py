"""Architectures with a composite config, an attention of their own kind, or experts."""

import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import T5Config

from support.zoo import zoo_config, zoo_folder
from support.zoo_measures import (
    LONG,
    gradient_difference,
    load,
    logprob_difference,
    reference_of,
    with_random_adapter,
)
from vigneron.core.draws import Sampling, draw
from vigneron.errors import UserError
from vigneron.policy.lora import encoder_names
from vigneron.policy.model_checks import check_head
from vigneron.policy.model_names import check_model_name
from vigneron.policy.reward_model import load_reward_model
from vigneron.remote.vllm.weights import host_weights
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.sample import sample, sampler_of


@pytest.mark.parametrize("name", ["Gemma 3", "Llama 4", "Falcon (ALiBi)"])
def test_texts_longer_than_a_window_have_transformers_log_probs(tmp_path: Path, name: str) -> None:
    """Sampled and trained ones. All of these ended in a traceback. `test_zoo.py` has every family."""
    folder = zoo_folder(name, tmp_path)
    policy = load(folder)
    assert logprob_difference(policy, reference_of(policy, folder), LONG) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gemma 3", "Gemma 3n text"])
def test_completions_of_unequal_lengths_have_transformers_gradient(tmp_path: Path, name: str) -> None:
    """Of a composite model too. Gemma 3n's was NaN where a packed row had padding."""
    folder = zoo_folder(name, tmp_path)
    policy = load(folder)
    assert gradient_difference(policy, reference_of(policy, folder), LONG) < 1e-5


def test_encoders_are_neither_trained_nor_adapted(tmp_path: Path) -> None:
    folder = zoo_folder("Gemma 3", tmp_path)
    policy, adapted = load(folder), with_random_adapter(folder)
    assert encoder_names(policy.causal) == ["model.vision_tower", "model.multi_modal_projector"]
    names = [name for name, _ in policy.trainable()]
    text = [n for n, _ in policy.causal.named_parameters() if n.startswith(("model.language_model.", "lm_head."))]
    assert names == text
    assert all("language_model" in name for name, _ in adapted.trainable())


def test_a_composite_config_has_the_text_models_context(tmp_path: Path) -> None:
    assert load(zoo_folder("Gemma 3", tmp_path)).context_length == 64


@pytest.mark.parametrize(
    "name", ["Qwen3-MoE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Mixtral", "Phi-3.5-MoE"))]
)
def test_adapters_on_a_mixture_of_experts_are_sampled_from(tmp_path: Path, name: str) -> None:
    adapted = with_random_adapter(zoo_folder(name, tmp_path))
    assert logprob_difference(adapted, adapted.causal, LONG) < 1e-5
    assert isinstance(sampler_of(adapted), Engine)


def test_prompts_of_a_recurrent_model_are_not_padded(tmp_path: Path) -> None:
    """Padding entered the state: log-probs of shorter prompts were 0.37 nats off."""
    folder = zoo_folder("RecurrentGemma", tmp_path)
    policy = load(folder)
    assert logprob_difference(policy, reference_of(policy, folder), LONG) < 1e-3


def test_generate_is_called_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, lines = load(zoo_folder("Mamba", tmp_path)), []
    logger = logging.getLogger("transformers.generation.utils")
    monkeypatch.setattr(logger, "warning_once", lambda text, *_: lines.append(text), raising=False)
    sample(policy, [[1, 2], [3]], max_new_tokens=2, sampling=Sampling())
    assert lines == []


def test_an_architecture_without_a_reward_model_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = zoo_folder("OLMoE", tmp_path)
    with pytest.raises(UserError, match="transformers has no sequence-classification model for 'olmoe'"):
        load_reward_model(str(folder), start=True, device="cpu")


def test_a_model_without_a_causal_head_is_refused_in_one_line(tmp_path: Path) -> None:
    T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="transformers has no language model with a causal head for 't5'"):
        load(tmp_path)


def test_a_failure_of_the_engine_leads_to_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = zoo_folder("Llama", tmp_path)
    policy = load(folder)

    def fail(*_: object) -> None:
        raise IndexError("a layer\nof another kind")

    monkeypatch.setattr(Engine, "_make_room", fail)
    notice = sampler_of(policy).notice
    assert "slower than the engine: the model has" in (notice or "")
    assert "\n" not in (notice or "")
    assert logprob_difference(policy, reference_of(policy, folder), LONG) < 1e-5


def test_a_model_whose_pass_fails_is_refused_in_one_line(tmp_path: Path) -> None:
    policy = load(zoo_folder("Llama", tmp_path))
    policy.causal.model.layers[1].self_attn.q_proj = torch.nn.Linear(3, 3)
    with pytest.raises(
        UserError, match="model: 'llama' is not supported: a test forward pass on 'cpu' fails"
    ) as caught:
        check_head(policy)
    assert "\n" not in str(caught.value)


def test_sizes_per_layer_are_not_numbers_of_layers(tmp_path: Path) -> None:
    for name in ("Gemma 3n text", "Gemma 4"):
        folder = tmp_path / name
        folder.mkdir()
        config = zoo_config(name).to_dict()
        (config.get("text_config") or config)["vocab_size_per_layer_input"] = 262_144
        (folder / "config.json").write_text(json.dumps(config))
        check_model_name(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"text_config": {"num_hidden_layers": 10_001}}))
    with pytest.raises(UserError, match="claims more than 10,000 layers"):
        check_model_name(str(folder))


def test_weights_with_nan_are_refused_at_the_start(tmp_path: Path) -> None:
    policy = load(zoo_folder("Llama", tmp_path))
    policy.causal.lm_head.weight.data[3, 3] = torch.nan
    with pytest.raises(UserError, match="its logits are not finite: the weights contain NaN"):
        check_head(policy)


@pytest.mark.parametrize("name", ["Llama", "Mamba"])
@pytest.mark.parametrize("sampling", [None, Sampling(), Sampling(top_k=3), Sampling(top_p=0.5)])
def test_nan_logits_while_sampling_are_one_line(tmp_path: Path, name: str, sampling: Sampling | None) -> None:
    """By the engine and by `generate`: it was an index error, on a GPU one that ends the process."""
    policy = load(zoo_folder(name, tmp_path))
    sampler_of(policy)
    policy.causal.get_output_embeddings().weight.data[3, 3] = torch.nan
    with pytest.raises(UserError, match="the model's logits are NaN or infinite in 2 of 2 samples"):
        sample(policy, [[1, 2], [3]], max_new_tokens=3, sampling=sampling)


def test_a_draw_from_nan_stays_inside_the_vocabulary() -> None:
    for size in (3, 700):
        token = draw(torch.full((2, size), torch.nan), torch.tensor([0.3, 0.9], dtype=torch.float64))
        assert ((token >= 0) & (token < size)).all()


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Gemma 3"])
def test_a_vllm_server_gets_merged_weights(tmp_path: Path, name: str) -> None:
    adapted = with_random_adapter(zoo_folder(name, tmp_path))
    merged = host_weights(adapted)
    expected = adapted.model.merge_and_unload().state_dict()
    assert merged.keys() == expected.keys()
    for key, weight in expected.items():
        torch.testing.assert_close(merged[key], weight, atol=1e-6, rtol=1e-6)
