"""Identities between methods: each is another one with something set to 1, to 0 or to itself.

Those of one function alone stand with its tests in tests/core.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.advantages import gae
from vigneron.core.information import importance_estimate
from vigneron.core.kl import exact, k1, k2, k3
from vigneron.core.losses import (
    aggregate,
    bradley_terry,
    clipped_ratio,
    dpo,
    importance_ratio,
    nll,
    policy_gradient,
    preference_bce,
)

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**31)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


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


@quick
@given(seeds)
def test_nll_is_the_policy_gradient_of_advantage_one_and_of_a_reward_its_multiple(seed: int) -> None:
    """Eq. 1 in eq. 3, and §4.1's reward-weighted loss, in value and in gradient."""
    torch.manual_seed(seed)
    start, rewards = -torch.rand(3, 4).double(), normal(3, 1).expand(3, 4)
    for advantages, loss in ((torch.ones(3, 4).double(), nll), (rewards, lambda now: rewards * nll(now))):
        now, again = start.clone().requires_grad_(), start.clone().requires_grad_()
        ours, wanted = policy_gradient(now, advantages), loss(again)
        torch.testing.assert_close(ours, wanted)
        ours.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(now.grad, again.grad)


@quick
@given(seeds)
def test_the_ratio_makes_what_pi_0_wrote_an_estimate_for_pi_1(seed: int) -> None:
    """Eq. 7 is eq. 18: of every token, with the probability that π₀ writes it, −Σ π₁ A is left."""
    torch.manual_seed(seed)
    now, before, advantages = normal(5).log_softmax(0), normal(5).log_softmax(0), normal(5)
    expected = (before.exp() * importance_ratio(now[None], before[None], advantages[None])[0]).sum()
    torch.testing.assert_close(expected, -(now.exp() * advantages).sum())
    drawn = torch.tensor([3, 0, 3])
    loss = importance_ratio(now[None, drawn], before[None, drawn], advantages[None, drawn]).mean()
    torch.testing.assert_close(loss, -importance_estimate(advantages[drawn], now[drawn], before[drawn]))


def gradient(logits: Tensor, loss) -> Tensor:
    leaf = logits.clone().requires_grad_()
    loss(leaf.log_softmax(0)).backward()
    return leaf.grad


@quick
@given(seeds, st.integers(2, 6))
def test_which_kl_each_estimator_trains(seed: int, size: int) -> None:
    """Over every token with its probability: E∇k1 = 0, E∇k2 = ∇KL(π ‖ ref), E∇k3 = ∇KL(ref ‖ π), for all π and ref.

    And three that have ∇KL(π ‖ ref): the exact one, k1 in the reward (eq. 12), and TRL's k3 times the ratio.
    """
    torch.manual_seed(seed)
    logits, ref = normal(size), normal(size).log_softmax(0)
    p = logits.log_softmax(0)

    def expected(loss) -> Tensor:
        return gradient(logits, lambda now: (p.exp() * loss(now[None], ref[None])[0]).sum())

    reverse = gradient(logits, lambda now: (now.exp() * (now - ref)).sum())
    forward = gradient(logits, lambda now: (ref.exp() * (ref - now)).sum())
    close = {"atol": 1e-12, "rtol": 1e-9}
    torch.testing.assert_close(expected(k1), torch.zeros_like(p), **close)
    torch.testing.assert_close(expected(k2), reverse, **close)
    torch.testing.assert_close(expected(k3), forward, **close)
    torch.testing.assert_close(gradient(logits, lambda now: exact(now, ref)), reverse, **close)
    torch.testing.assert_close(expected(lambda now, q: policy_gradient(now, -k1(now, q).detach())), reverse, **close)
    torch.testing.assert_close(expected(lambda now, q: importance_ratio(now, p[None], -k3(now, q))), reverse, **close)


@quick
@given(seeds, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_kl_in_the_reward_adds_its_own_advantage(seed: int, beta: float, gamma: float, lam: float) -> None:
    """A is linear in R (§4.7): A' of R' = R − β k1 (eq. 12) is A less β times the advantage of k1 without a critic."""
    torch.manual_seed(seed)
    rewards, values, penalty = normal(2, 4), normal(2, 4), normal(2, 4)
    mask, discount = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), {"gamma": gamma, "lam": lam}
    together, _ = gae(rewards - beta * penalty, values, mask, **discount)
    apart = gae(rewards, values, mask, **discount)[0]
    apart = apart - beta * gae(penalty, torch.zeros_like(values), mask, **discount)[0]
    torch.testing.assert_close(together, apart)


@quick
@given(st.floats(-15, 15), st.floats(-15, 15), st.floats(0, 1))
def test_the_reward_models_loss_is_the_preference_models_of_the_difference(ri: float, rj: float, hp: float) -> None:
    """Eq. 5 with P by the softmax, §3's loss with P by the sigmoid, and eq. 6, which is hp = 1."""
    rewards = torch.tensor([ri, rj], dtype=torch.float64)
    chosen, rejected = rewards.log_softmax(0).tolist()
    loss = preference_bce(rewards[:1] - rewards[1:], torch.tensor([hp], dtype=torch.float64))
    assert loss.item() == pytest.approx(-hp * chosen - (1 - hp) * rejected)
    assert bradley_terry(rewards[:1], rewards[1:]).item() == pytest.approx(-chosen)


@quick
@given(seeds, st.floats(0.01, 2))
def test_dpo_is_the_reward_models_loss_with_the_log_ratio_as_reward(seed: int, beta: float) -> None:
    """§4.9, and its first form, where the reward is −NLL."""
    torch.manual_seed(seed)
    chosen, rejected, ref_chosen, ref_rejected = -10 * torch.rand(4, 3).double()
    reward = bradley_terry(beta * (chosen - ref_chosen), beta * (rejected - ref_rejected))
    torch.testing.assert_close(dpo(chosen, rejected, ref_chosen, ref_rejected, beta=beta), reward)
    torch.testing.assert_close(dpo(chosen, rejected, beta=1.0), bradley_terry(-nll(chosen[None])[0], rejected))
