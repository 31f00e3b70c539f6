"""Which decoder layers get kernels for their sums, by the layers' own forward passes. `tests/gpu` compares numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from support.zoo import zoo_config, zoo_model
from vigneron.policy.checkpointing import checkpoint_layers
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.fake_policy import Holding, fake_policy
from vigneron.policy.fused_class import plain_modules
from vigneron.policy.fused_modules import fuse_modules
from vigneron.policy.fused_sums import fuse_sums
from vigneron.policy.kernel_shapes import shapes_only

PRE_NORM = ["Llama", "Mistral v0.1 (window)", "Qwen2", "Qwen3", "SmolLM3", "Gemma", "Phi-3", "Hunyuan", "Mistral 3"]
OTHER = {
    "Granite": "each result is multiplied",
    "Gemma 2": "results have norms",
    "Gemma 3": "results have norms",
    "OLMo 2": "results have norms, inputs have not",
    "GLM-4": "results have norms",
    "EXAONE 4": "results have norms, inputs have not",
    "Cohere": "attention and MLP are parallel",
    "Phi": "attention and MLP are parallel",
    "OLMo": "norms of another kind, so the layers are compiled",
    "Qwen3-MoE": "experts",
    "Qwen3.5 text": "one layer is recurrent",
}


@pytest.mark.parametrize("family", [*PRE_NORM, *OTHER])
def test_layers_of_the_usual_form_are_replaced(family: str) -> None:
    model = zoo_model(family)
    names = list(model.state_dict())
    with shapes_only():
        fuse_modules(model)
        fuse_modules(model)  # as for the model that samples
    assert [getattr(layer, "fused", False) for layer in decoder_layers(model)] == 2 * [family in PRE_NORM]
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("family", ["Qwen2", "Granite"])
def test_memory_is_planned_with_the_same_layers(family: str) -> None:
    with FakeTensorMode(), shapes_only():
        policy = fake_policy(zoo_config(family), Holding(fused=True), 2)
    replaced = [getattr(layer, "fused", False) for layer in decoder_layers(policy.causal)]
    assert replaced == 2 * [family in PRE_NORM]


class OneOptionLess(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, position_ids: Any = None, **kwargs: Any) -> Any:
        return super().forward(hidden_states, **kwargs)


class OtherDefault(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, use_cache: Any = None, **kwargs: Any) -> Any:
        return super().forward(hidden_states, use_cache=bool(use_cache), **kwargs)


class NormOfInput(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        y = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        return y + self.mlp(self.post_attention_layernorm(hidden_states))


class NormsExchanged(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        y = hidden_states + self.self_attn(hidden_states=self.post_attention_layernorm(hidden_states), **kwargs)[0]
        return y + self.mlp(self.input_layernorm(y))


class Tuple(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        return (super().forward(hidden_states, **kwargs),)


class OwnScale(LlamaDecoderLayer):
    """A buffer that is 1, as it may be before it is loaded."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.register_buffer("layer_scalar", torch.ones(1))


@pytest.mark.parametrize("kind", [OneOptionLess, OtherDefault, NormOfInput, NormsExchanged, Tuple, OwnScale])
def test_a_layer_with_any_other_forward_pass_keeps_it(kind: Any) -> None:
    config = zoo_model("Llama").config
    usual, other = LlamaDecoderLayer(config, 0).eval(), kind(config, 0).eval()
    fuse_sums(usual)
    fuse_sums(other)
    assert type(usual) is not LlamaDecoderLayer
    assert type(other) is kind


def test_a_multiplier_of_1_is_the_usual_form() -> None:
    model: Any = zoo_model("Granite")
    first, second = decoder_layers(model)
    first.residual_multiplier = 1.0
    fuse_sums(first)
    fuse_sums(second)
    assert [getattr(layer, "fused", False) for layer in (first, second)] == [True, False]


@pytest.mark.parametrize("family", ["Llama", "Qwen2 (window)", "Phi-3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_float64_replaced_layers_compute_what_they_did(family: str, checkpointing: bool) -> None:
    """Where nothing is fused: attention gets its masks and positions; also in training mode, and with plain modules."""
    model: Any = zoo_model(family).double()
    ids = torch.arange(1, 41).view(2, 20)
    if checkpointing:
        checkpoint_layers(model)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(input_ids=ids, attention_mask=(ids != 1).long(), use_cache=False).logits.square().sum().backward()
        return [weight.grad.clone() for weight in model.parameters()]

    before = gradients()
    for layer in decoder_layers(model):
        fuse_sums(layer)
        assert getattr(layer, "fused", False)
    with plain_modules():
        assert all(map(torch.equal, before, gradients()))
    assert all(map(torch.equal, before, gradients()))
    model.train()  # the zoo's models have no dropout
    assert all(map(torch.equal, before, gradients()))
