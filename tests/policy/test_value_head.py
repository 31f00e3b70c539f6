"""The critic's head at the start: zero, or at random as torch starts a linear layer, the same for a seed."""

from pathlib import Path

import pytest
import torch

from support.resuming import check_third_arm, lose_nothing
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.policy.logprobs import Critic, ValueHead

HIDDEN = 576


def test_it_is_zero_unless_a_seed_is_given() -> None:
    head = ValueHead(HIDDEN)
    assert not head.linear.weight.any()
    assert not head.linear.bias.any()
    torch.testing.assert_close(head(torch.randn(3, HIDDEN)), torch.zeros(3))


def test_a_random_one_is_torchs_uniform_and_the_seeds() -> None:
    heads = [ValueHead(HIDDEN, random_seed=seed) for seed in range(200)]
    weights = torch.cat([head.linear.weight.detach().flatten() for head in heads])
    limit = HIDDEN**-0.5
    assert weights.abs().max() <= limit
    assert weights.std().item() == pytest.approx(limit / 3**0.5, rel=0.01)  # of a uniform distribution
    assert weights.mean().item() == pytest.approx(0.0, abs=0.01 * limit)
    assert all(head.linear.bias.item() != 0 for head in heads)
    torch.rand(5)
    assert torch.equal(ValueHead(HIDDEN, random_seed=7).linear.weight, heads[7].linear.weight)


def test_other_draws_do_not_depend_on_it() -> None:
    states = []
    for seed in (None, 3):
        torch.manual_seed(0)
        ValueHead(HIDDEN, random_seed=seed)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_never_in_bfloat16(held: torch.dtype) -> None:
    """A value of 0.7 in bfloat16 is off by up to 0.002, whatever the critic learns."""
    critic = Critic.of(tiny_policy(dtype=held), "every_token")
    assert critic.head.linear.weight.dtype == (torch.float64 if held == torch.float64 else torch.float32)


@pytest.mark.slow
def test_a_run_that_starts_so_resumes_exactly(tmp_path: Path, tiny_folder: Path) -> None:
    method = {"name": "actor_critic", "value_start": "random"}
    optimizer = {"actor_lr": 1e-3, "critic_lr": 1e-2, "weight_decay": 0.01}
    reward = {"kind": "binary"}
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method=method,
        optimizer=optimizer,
        reward=reward,
        steps=4,
        save_every=2,
        eval_every=0,
    )
    whole = api.train(config, name="whole", runs=tmp_path).folder
    check_third_arm(whole, tmp_path, lose_nothing)
