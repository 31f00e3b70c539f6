"""Activation checkpointing: the same gradients in less memory, without the dropout and noise of training mode."""

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import checkpoint_activations, make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy

PAIRS = [([5, 6, 7], [8, 9, 10, 11]), ([12], [13, 14])]
# Dropout in functions, in modules and in a layer's config; noise in a router; none.
DROPOUT = {
    "StarCoder2": {},
    "BLOOM": {},
    "Mixtral": {},
    "Falcon (rotary)": {"hidden_dropout": 0.3, "attention_dropout": 0.3},
    "OPT": {"dropout": 0.3},
    "Llama": {},
}


def zoo_policy(family: str) -> Policy:
    model = zoo_model(family)
    for name, value in DROPOUT[family].items():
        for holder in (model.config, *model.modules()):
            if hasattr(holder, name) and not isinstance(getattr(holder, name), torch.nn.Module):
                setattr(holder, name, value)
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


def gradients(policy: Policy, pairs: list[tuple[list[int], list[int]]] = PAIRS) -> dict[str, torch.Tensor]:
    score(policy, batch_of(pairs), Sampling()).logprobs_BT.sum().backward()
    return {name: weight.grad for name, weight in policy.trainable() if weight.grad is not None}


@pytest.mark.parametrize("family", DROPOUT)
def test_gradients_are_those_without_checkpointing(family: str) -> None:
    expected = gradients(zoo_policy(family))
    policy = zoo_policy(family)
    checkpoint_activations(policy)
    got = gradients(policy)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("family", ["Mistral v0.1 (window)", "Gemma 2", "gpt-oss"])
def test_a_layer_runs_again_with_its_window_cap_and_sinks(family: str) -> None:
    """With rows that reach the window."""
    pairs = [(list(range(5, 17)), list(range(20, 36))), ([12, 13], list(range(40, 60)))]
    policies = [make_policy(zoo_model(family), byte_tokenizer(), device=torch.device("cpu")) for _ in range(2)]
    checkpoint_activations(policies[1])
    expected, got = (gradients(policy, pairs) for policy in policies)
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("lora", [False, True])
def test_layers_run_again_in_the_backward_pass(lora: bool) -> None:
    """Also behind a frozen embedding. A copy of the policy checkpoints too."""
    model = zoo_model("Llama")
    policy = make_policy(add_lora(model, Lora(rank=2)) if lora else model, None, device=torch.device("cpu"))
    checkpoint_activations(policy)
    policy.own_attention = True  # not to be found by test passes here
    for each in (policy, policy.trainable_copy()):
        calls: list[bool] = []
        each.causal.model.layers[1].self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(True))
        total = score(each, batch_of(PAIRS), Sampling()).logprobs_BT.sum()
        assert len(calls) == 1
        total.backward()
        assert len(calls) == 2
        assert all(weight.grad is not None for _, weight in each.trainable())
    with torch.no_grad():
        score(policy, batch_of(PAIRS), Sampling())
    assert type(policy.causal.model.layers[0]).__name__ == "LlamaDecoderLayer"
