"""Products with the Fisher matrix, against the matrix itself on a tiny model."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from support.small_batch import make_batch
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy.fisher import fisher_product
from vigneron.policy.model import Policy


def small_policy(kind: str) -> Policy:
    """So few trained weights that the matrix can be written down."""
    policy = tiny_policy(kind, dtype=torch.float64)
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_((parameter.dim() == 1 and "norm" in name) or "ln_f" in name)
    return policy


def dense_fisher(policy: Policy, batch: Batch, temperature: float) -> Tensor:
    """E[∇ log π ∇ log πᵀ], the expectation taken over the whole vocabulary at every trained token."""
    weights = {name: weight.detach() for name, weight in policy.trainable()}
    names = list(weights)

    def logprobs(row: int, given: dict[str, Tensor]) -> Tensor:
        prompt, completion = batch.samples.prompt_ids[row], batch.samples.completion_lists()[row]
        ids = torch.tensor([[*prompt, *completion]])
        logits = functional_call(policy.model, given, (ids,)).logits[0]
        return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)

    size = sum(weight.numel() for weight in weights.values())
    fisher, count = torch.zeros(size, size, dtype=torch.float64), 0
    for row in range(len(batch)):
        if not batch.trained_BT[row].any():
            continue
        jacobian = torch.autograd.functional.jacobian(
            lambda *values, row=row: logprobs(row, dict(zip(names, values, strict=True))), tuple(weights.values())
        )
        scores = torch.cat([j.flatten(2) for j in jacobian], 2)
        p = logprobs(row, weights).exp()
        fisher += torch.einsum("tv,tvi,tvj->ij", p, scores, scores)
        count += len(p)
    return fisher / count


@pytest.mark.parametrize(
    ("kind", "microbatch_tokens"),
    [
        ("gpt2", 7),
        pytest.param("gpt2", 1000, marks=pytest.mark.slow),
        pytest.param("llama", 7, marks=pytest.mark.slow),
    ],
)
def test_the_product_is_the_matrixs(kind: str, microbatch_tokens: int) -> None:
    policy = small_policy(kind)
    batch = make_batch([3, 2, 2, 1], [2, 3, 1, 4])
    ids = batch.samples.completion_BT % 50
    batch = batch.with_samples(completion_BT=ids).with_signals(rewards_B=torch.tensor([1.0, 0.0, 0.5, torch.nan]))
    fisher = dense_fisher(policy, batch, temperature=0.7)
    torch.manual_seed(0)
    for _ in range(3):
        vector = torch.randn(len(fisher), dtype=torch.float64)
        found = fisher_product(
            policy, batch, vector, sampling=Sampling(temperature=0.7), microbatch_tokens=microbatch_tokens
        )
        # Llama's norms compute in float32, whatever the weights are.
        near = 1e-10 if kind == "gpt2" else 1e-5
        torch.testing.assert_close(found, fisher @ vector, rtol=0.0, atol=near * float(fisher.abs().max()))
    assert fisher.abs().max() > 1e-6
