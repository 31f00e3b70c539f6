"""A frozen copy in bfloat16 compute: half the memory, the same bits."""

from typing import Any

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import tiny_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy, Reference

BATCH = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])


@pytest.fixture
def mkldnn_as_it_was() -> Any:
    """A product in bfloat16 on a CPU without it switches oneDNN off for the whole process, and changes later bits."""
    before = torch.backends.mkldnn.enabled
    yield
    torch._C._set_mkldnn_enabled(before)


def policy_of(kind: str, dtype: torch.dtype) -> Policy:
    return make_policy(tiny_model(kind).eval(), None, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.usefixtures("mkldnn_as_it_was")
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
