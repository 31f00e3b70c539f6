"""How weights are held: bfloat16 changes no bit where it may not, and checks at load see float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, LlamaForCausalLM

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer, tiny_model, tiny_scorer
from support.zoo import UNLIKE, zoo_folder, zoo_model
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.held_weights import built_in_bfloat16
from vigneron.policy.load import load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import load_reward_model, scores
from vigneron.policy.stored import hold
from vigneron.training.checkpoint.read import weights_identity

BATCH = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])


@pytest.fixture(autouse=True)
def no_mkldnn(mkldnn_as_it_was: None) -> None:
    """The first product in bfloat16 on a CPU without it switches oneDNN off, and changes later bits."""
    torch.backends.mkldnn.set_flags(False)


def folder_of(kind: str, place: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    tiny_model(kind).to(dtype).save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return str(place)


def loaded(folder: str, weights: Any = "auto", dtype: Any = "bfloat16", **options: Any) -> Policy:
    torch.manual_seed(0)
    return load_policy(folder, device="cpu", weights=weights, dtype=dtype, **options)


def scores_and_gradients(policy: Policy) -> dict[str, torch.Tensor]:
    logprobs_BT = score(policy, BATCH, Sampling()).logprobs_BT
    logprobs_BT.sum().backward()
    return {"scores": logprobs_BT.detach(), **{name: w.grad for name, w in policy.trainable() if w.grad is not None}}


def held(policy: Policy) -> dict[torch.dtype, set[int]]:
    """The dtypes of frozen weights, with their numbers of dimensions."""
    frozen = [w for w in policy.model.parameters() if not w.requires_grad]
    return {dtype: {w.dim() for w in frozen if w.dtype == dtype} for dtype in {w.dtype for w in frozen}}


@pytest.mark.parametrize("kind", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_a_base_in_bfloat16_changes_no_bit_of_scores_gradients_adapters_and_identity(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    ours, plain = loaded(folder, lora=Lora(4)), loaded(folder, "float32", lora=Lora(4))
    assert held(ours) == {torch.bfloat16: {2}, torch.float32: {1}}
    assert held(plain) == {torch.float32: {1, 2}}
    for (name, one), (_, other) in zip(ours.trainable(), plain.trainable(), strict=True):
        assert one.dtype == torch.float32, name
        assert torch.equal(one, other), name
    expected = scores_and_gradients(plain)
    for name, tensor in scores_and_gradients(ours).items():
        assert torch.equal(tensor, expected[name]), name
    assert weights_identity("", ours) == weights_identity("", plain)
    assert (ours.shares_prompts, ours.own_attention) == (plain.shares_prompts, plain.own_attention) == (True, True)


@pytest.mark.parametrize("kind", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_a_float32_pass_upcasts_what_is_held_to_the_bit(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    ours, plain = loaded(folder, lora=Lora(4)), loaded(folder, "float32", "float32", lora=Lora(4))
    ours.compute_dtype = torch.float32
    with torch.no_grad():
        expected = score(plain, BATCH, Sampling()).logprobs_BT
        assert torch.equal(score(ours, BATCH, Sampling()).logprobs_BT, expected)
        assert next(ours.causal.parameters()).dtype == torch.bfloat16
        ours.compute_dtype = torch.bfloat16
        assert not torch.equal(score(ours, BATCH, Sampling()).logprobs_BT, expected)


@pytest.mark.parametrize(
    "options", [pytest.param({"lora": Lora(4)}, marks=pytest.mark.slow), {"trained": False}], ids=["lora", "frozen"]
)
def test_numbers_that_bfloat16_would_round_stay_unless_it_is_asked_for(tmp_path: Path, options: Any) -> None:
    folder = folder_of("llama", tmp_path, torch.float32)
    stored = dict(LlamaForCausalLM.from_pretrained(folder).named_parameters())
    notices: list[str] = []
    ours, rounded = loaded(folder, **options), loaded(folder, "bfloat16", notice=notices.append, **options)
    assert notices == [f"model: '{folder}': its weights in F32 are rounded to bfloat16"]
    assert held(ours) == {torch.float32: {1, 2}}
    assert held(rounded) == {torch.bfloat16: {2}, torch.float32: {1}}
    for name, weight in rounded.causal.named_parameters():
        if "lora_" not in name:
            expected = stored[name.replace(".base_layer", "")]
            assert torch.equal(weight, expected.bfloat16() if weight.dim() > 1 else expected), name
    in_float32 = loaded(folder, "bfloat16", "float32", **options)
    assert held(in_float32) == {torch.float32: {1, 2}}
    assert weights_identity("", in_float32) == weights_identity("", rounded) != weights_identity("", ours)


def test_what_stays_in_float32_is_said_with_its_size() -> None:
    odd = nn.Linear(1024, 2048, bias=False)
    assert hold(odd, "no") is None
    assert hold(odd, "exact") == (
        "the frozen weights are held in float32, 0.0 GB more than in bfloat16, which would round them: "
        "`model.weights: bfloat16` does"
    )
    assert odd.weight.dtype == torch.float32
    assert hold(odd, "rounded") is None
    assert odd.weight.dtype == torch.bfloat16


def test_matrices_are_never_in_float32_while_they_are_read(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(folder_of("llama", tmp_path))
    with torch.device("meta"):
        model = built_in_bfloat16(LlamaForCausalLM)(config)
    assert {(w.dtype, w.dim()) for w in model.parameters()} == {(torch.bfloat16, 2), (torch.float32, 1)}
    assert {b.dtype for b in model.buffers()} == {torch.float32}
    assert type(loaded(str(tmp_path), lora=Lora(4)).causal) is LlamaForCausalLM


def test_an_embedding_that_computes_with_its_weights_stays_in_float32(tmp_path: Path) -> None:
    """Gemma scales it by √H in the dtype of the weights."""
    policy = loaded(str(zoo_folder("Gemma 2", tmp_path)), "bfloat16", lora=Lora(4))
    assert policy.causal.get_input_embeddings().weight.dtype == torch.float32
    assert policy.causal.model.layers[0].mlp.up_proj.get_base_layer().weight.dtype == torch.bfloat16


def test_a_model_that_casts_states_to_its_weights_dtype_keeps_float32(tmp_path: Path) -> None:
    zoo_model("Mamba").to(torch.bfloat16).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    notices: list[str] = []
    policy = loaded(str(tmp_path), trained=False, notice=notices.append)
    assert notices == ["the frozen weights are held in float32: 'mamba' computes otherwise in bfloat16"]
    assert {w.dtype for w in policy.model.parameters()} == {torch.float32}
    with pytest.raises(UserError, match=r"'mamba' is not supported: .*; `model.weights: bfloat16` may be the reason"):
        loaded(str(tmp_path), "bfloat16")


@pytest.mark.slow
def test_every_kind_of_layer_gives_the_same_bits(tmp_path: Path) -> None:
    """Scores under an adapter, with a base in bfloat16 and in float32. A run checks its own model when it loads it."""
    for number, family in enumerate((*UNLIKE, "Mamba 2")):
        folder = tmp_path / str(number)
        zoo_model(family).to(torch.bfloat16).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        ours, plain = loaded(str(folder), lora=Lora(2)), loaded(str(folder), "float32", lora=Lora(2))
        assert ours.low_precision is (family not in ("Mamba", "Mamba 2")), family
        assert (ours.shares_prompts, ours.own_attention) == (plain.shares_prompts, plain.own_attention), family
        with torch.no_grad():
            assert torch.equal(*(score(each, BATCH, Sampling()).logprobs_BT for each in (ours, plain))), family


def test_gradients_of_bfloat16_weights_are_those_of_float32_rounded_once(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    ours, plain = loaded(folder, "bfloat16"), loaded(folder, "float32")
    expected, got = scores_and_gradients(plain), scores_and_gradients(ours)
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        assert tensor.dtype == (torch.bfloat16 if tensor.dim() > 1 and name != "scores" else torch.float32), name
        assert torch.equal(tensor, expected[name].to(tensor.dtype)), name
    critic = ours.trainable_copy()
    assert {w.dtype for w in critic.model.parameters()} == {torch.bfloat16, torch.float32}
    for name, tensor in scores_and_gradients(critic).items():
        assert torch.equal(tensor, got[name]), name


def test_a_frozen_reward_model_in_bfloat16_gives_the_scores_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_scorer("llama").model.to(torch.bfloat16).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    plain = load_reward_model(str(tmp_path), start=False, device="cpu", dtype="float32")
    monkeypatch.setattr("vigneron.policy.device.has_bfloat16", lambda device: True)
    ours = load_reward_model(str(tmp_path), start=False, device="cpu", dtype="float32")
    assert {(w.dtype, w.dim()) for w in ours.model.parameters() if w.dtype == torch.bfloat16} == {(torch.bfloat16, 2)}
    assert plain.low_precision is False
    with torch.no_grad():
        assert torch.equal(scores(ours, BATCH), scores(plain, BATCH))
