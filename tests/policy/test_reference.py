"""The reference: a frozen copy with the policy's bits, in half the memory in bfloat16 compute, or in host memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from support.small_batch import batch_of
from support.tiny_models import tiny_model, tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.config import MethodConfig
from vigneron.config.kl import needs_reference_head
from vigneron.core.draws import Sampling
from vigneron.methods import build_method
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import ExactKl, reference_view, score
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.rollout.engine.sample import sample
from vigneron.training.parts import Parts

BATCH = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])


def policy_of(kind: str, dtype: torch.dtype) -> Policy:
    return make_policy(tiny_model(kind).eval(), None, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen"])
def test_a_frozen_copy_scores_as_the_policy_to_the_bit(kind: str) -> None:
    policy = policy_of(kind, torch.bfloat16)
    reference = Reference.of(policy)
    held = {str(weight.dtype) for weight in reference.policy.model.parameters()}
    assert held == {"torch.bfloat16", "torch.float32"}
    with torch.no_grad(), reference.active() as frozen:
        assert torch.equal(score(frozen, BATCH, Sampling()).logprobs_BT, score(policy, BATCH, Sampling()).logprobs_BT)
        for weight in policy.model.parameters():
            weight += 0.1 * torch.randn_like(weight)
        reference.follow(policy)
        assert torch.equal(score(frozen, BATCH, Sampling()).logprobs_BT, score(policy, BATCH, Sampling()).logprobs_BT)


def test_in_float32_a_copy_is_a_copy() -> None:
    reference = Reference.of(policy_of("llama", torch.float32))
    assert {weight.dtype for weight in reference.policy.model.parameters()} == {torch.float32}


def places(reference: Reference) -> list[int]:
    return [weight.data_ptr() for weight in reference.policy.model.parameters()]


def view(reference: Reference, **keys: Any) -> dict[str, Tensor]:
    return reference_view(reference, BATCH, Sampling(), keep_hidden=True, **keys)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen"])
def test_an_offloaded_reference_has_the_same_bits_and_weights_that_come_and_go(kind: str) -> None:
    policy = make_policy(tiny_model(kind).eval(), None, device=torch.device("cpu"))
    here, offloaded = Reference.of(policy), Reference.of(policy)
    offloaded.offload()
    assert offloaded.host is not None
    assert offloaded.host.bytes == sum(weight.nbytes for weight in here.policy.model.parameters())
    on_host = places(offloaded)
    expected = view(here)
    for _ in range(2):
        for name, values in view(offloaded).items():
            assert torch.equal(values, expected[name])
        assert places(offloaded) == on_host
    with offloaded.active() as loaded:
        assert not set(places(offloaded)) & set(on_host)
        head, embedding = loaded.causal.get_output_embeddings(), loaded.causal.get_input_embeddings()
        tied = policy.causal.get_output_embeddings().weight is policy.causal.get_input_embeddings().weight
        assert (head.weight is embedding.weight) == tied


def test_several_passes_share_one_copy_and_none_is_made_without_a_pass() -> None:
    reference = Reference.of(tiny_policy())
    reference.offload()
    on_host, seen = places(reference), []
    with reference.kept_loaded():
        assert places(reference) == on_host
        for _ in range(2):
            with reference.active():
                seen.append(places(reference))
    assert seen[0] == seen[1] != on_host
    assert places(reference) == on_host
    with pytest.raises(RuntimeError, match="in a pass"), reference.kept_loaded(), reference.active():
        raise RuntimeError("in a pass")
    assert places(reference) == on_host


def test_an_exact_kl_uses_the_head_that_stays() -> None:
    policy, other = tiny_policy(), Reference.of(tiny_policy())
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    batch = BATCH.with_signals(**view(other))
    expected = score(policy, batch, Sampling(), exact_kl=ExactKl(other)).exact_kl_BT
    assert expected.max() > 0
    other.offload()
    on_host, exact_kl = places(other), ExactKl(other)
    head = other.policy.causal.get_output_embeddings().weight
    moved = [new for old, new in zip(on_host, places(other), strict=True) if old != new]
    assert moved == [head.data_ptr()]
    assert torch.equal(score(policy, batch, Sampling(), exact_kl=exact_kl).exact_kl_BT, expected)
    truncated = Sampling(top_k=5)  # by autograd, not by the fused head
    torch.testing.assert_close(score(policy, batch, truncated, exact_kl=exact_kl).exact_kl_BT, expected)
    assert [new for old, new in zip(on_host, places(other), strict=True) if old != new] == moved


def test_a_method_s_passes_copy_the_weights_once_a_step(tmp_path: Any, tiny_folder: Any) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), microbatch_tokens=16)
    policy = tiny_policy()
    reference = Reference.of(policy)
    reference.offload()
    assert reference.host is not None
    loads, load = [], reference.host.load
    reference.host.load = lambda: (loads.append(1), load())[1]  # type: ignore[method-assign,func-returns-value]
    parts = Parts.of(config, policy, reference, lambda batch: batch)
    batch = batch_of([([1, 2, 3], [4, 5, 6])] * 6)
    found = parts.precompute(batch, parts.reference_pass)["reference_BT"]
    assert loads == [1]
    assert torch.equal(found, parts.precompute(batch, parts.policy_pass)["behaviour_BT"])
    assert loads == [1]


def test_a_sampler_of_the_reference_does_not_outlive_its_weights() -> None:
    policy = tiny_policy()
    reference = Reference.of(policy)
    keys: dict[str, Any] = {"max_new_tokens": 4}
    expected = sample(policy, [[1, 2, 3]], **keys).ids_BT
    reference.offload()
    for _ in range(2):
        with reference.active() as loaded:
            assert torch.equal(sample(loaded, [[1, 2, 3]], **keys).ids_BT, expected)
        assert loaded.sampler is None


@pytest.mark.parametrize(
    ("method", "uses"),
    [
        ({"name": "sft"}, False),
        ({"name": "rejection_sampling"}, False),
        ({"name": "reward_model"}, False),
        ({"name": "grpo"}, True),
        ({"name": "grpo", "kl": {"coefficient": 0}}, False),
        ({"name": "dpo"}, True),
        ({"name": "dpo", "loss": "simpo"}, False),
        ({"name": "flower"}, False),
        ({"name": "sppo"}, False),
        ({"name": "sppo", "against": "reference"}, True),
        ({"name": "reinforce"}, True),
        ({"name": "ppo"}, True),
    ],
)
def test_methods_know_whether_they_use_it(method: dict[str, Any], uses: bool) -> None:
    assert TypeAdapter(MethodConfig).validate_python(method).uses_reference is uses


@pytest.mark.parametrize("name", ["actor_critic", "grpo", "reinforce"])
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_memory_is_measured_with_an_exact_kl_where_the_update_has_one(
    tmp_path: Path, tiny_folder: Path, name: str, coefficient: float
) -> None:
    """The method then keeps the head of an offloaded reference on the device."""
    method = {"name": name, "kl": {"coefficient": coefficient}}
    optimizer = {"actor_lr": 1e-3}
    config = tiny_config(tiny_folder, write_data(tmp_path), method=method, group_size=2, optimizer=optimizer)
    policy = tiny_policy()
    reference = Reference.of(policy)
    reference.offload()
    assert reference.host is not None
    before = reference.host.bytes
    build_method(Parts.of(config, policy, reference, lambda batch: batch))
    assert (reference.host.bytes < before) == (coefficient > 0) == needs_reference_head(config.method)


@pytest.mark.slow
def test_a_model_is_copied_only_for_methods_that_use_it(tiny_folder: Path, tmp_path: Path) -> None:
    """Where none does, the model before training is loaded again when it is asked for."""
    data = write_data(tmp_path)
    texts = []
    for coefficient in (0.04, 0.0):
        method = {"name": "grpo", "kl": {"coefficient": coefficient}}
        config = tiny_config(tiny_folder, data, method=method, steps=1, group_size=2, optimizer={"actor_lr": 1e-3})
        trained = api.train(config, name=f"with {coefficient}", runs=tmp_path)
        assert trained.reference.is_loaded == (coefficient > 0)
        texts.append(trained.sample_before(["abc"]))
        assert trained.reference.is_loaded
    assert texts[0] == texts[1]
