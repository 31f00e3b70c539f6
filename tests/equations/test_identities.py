"""Identities between methods that this slice has."""

import torch

from vigneron.core.losses import aggregate, clipped_ratio, policy_gradient


def test_the_clipped_loss_at_ratio_one_has_reinforces_gradient() -> None:
    torch.manual_seed(0)
    logprobs = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    advantages = torch.randn(4, 5, dtype=torch.float64)
    mask = torch.rand(4, 5) < 0.7
    for loss in (
        policy_gradient(logprobs, advantages),
        clipped_ratio(logprobs, logprobs.detach(), advantages, mask, epsilon=0.2),
    ):
        logprobs.grad = None
        aggregate(loss, mask).backward()
        torch.testing.assert_close(logprobs.grad, torch.where(mask, -advantages, 0.0) / mask.sum())


def test_a_policy_gradient_with_advantage_one_is_maximum_likelihood() -> None:
    logprobs = torch.log(torch.tensor([[0.5, 0.25]], dtype=torch.float64))
    loss = aggregate(policy_gradient(logprobs, torch.ones_like(logprobs)), torch.ones_like(logprobs))
    assert loss.item() == torch.log(torch.tensor(8.0, dtype=torch.float64)).item() / 2  # −(ln ½ + ln ¼) / 2
