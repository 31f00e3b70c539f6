"""Rejection sampling (§3) is SFT on the best of each group: against a plain rewriting, one row at a time."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch

from support.tiny_models import tiny_policy
from vigneron.batch import Batch, Samples, Signals
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.method import Method
from vigneron.training.parts import Parts

PROMPTS = tuple(prompt for prompt in ((5, 9, 33, 2), (7, 8), (40, 41)) for _ in range(3))
COMPLETIONS = ((11, 12, 0), (13,), (14, 15), (16, 17, 18), (0,), (19, 20, 0), (21,), (22, 23), (24, 0))
TEXTS = ("a", "b", "c", "b", "d", "e", "f", "g", "h")
REWARDS = (0.5, 1.0, 0.4, math.nan, 0.75, 0.2, 0.1, 0.3, 0.3)
RATE = 0.1


def ready(**options: Any) -> tuple[Method, Any, Any]:
    policy = tiny_policy("gpt2", dtype=torch.float64)
    config = check_config(
        {
            "method": {"name": "rejection_sampling", **options},
            "data": {"task": "antonyms"},
            "reward": {"kind": "binary"},
            "optimizer": {"actor_lr": RATE, "max_grad_norm": 1e9},
            "microbatch_tokens": 8,
            "group_size": 3,
        },
        "test",
    )
    method = build_method(Parts.of(config, policy, Reference.of(policy), lambda b: b))
    (actor,) = method.update.optimized  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=RATE)
    return method, deepcopy(policy.model), policy.model


def sampled() -> Batch:
    ids = torch.zeros(9, 3, dtype=torch.long)
    for row, completion in enumerate(COMPLETIONS):
        ids[row, : len(completion)] = torch.tensor(completion)
    return Batch(
        Samples(
            prompt_ids=PROMPTS,
            completion_BT=ids,
            spans=tuple(((len(p), len(p) + len(c)),) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)),
            behaviour_BT=torch.zeros(9, 3, dtype=torch.float64),
            truncated_B=torch.zeros(9, dtype=torch.bool),
            group_B=torch.arange(9) // 3,
            sample_B=torch.arange(9),
            prompts=("",) * 9,
            completions=TEXTS,
        ),
        signals=Signals(rewards_B=torch.tensor(REWARDS, dtype=torch.float64)),
    )


def plain_loss(model: Any, kept: list[int]) -> torch.Tensor:
    """eq. 2 with the mean over tokens, on the kept rows alone."""
    losses = []
    for row in kept:
        logits = model(torch.tensor([PROMPTS[row] + COMPLETIONS[row]])).logits[0, len(PROMPTS[row]) - 1 : -1]
        losses.append(-logits.log_softmax(-1).gather(1, torch.tensor(COMPLETIONS[row])[:, None])[:, 0])
    return torch.cat(losses).mean()


@pytest.mark.parametrize(
    ("options", "kept", "figures"),
    [
        ({}, [1, 4, 7], (3 / 9, (1 + 0.75 + 0.3) / 3, 1.0, 0)),
        ({"keep": 2}, [0, 1, 4, 5, 7, 8], (6 / 9, (0.5 + 1 + 0.75 + 0.2 + 0.3 + 0.3) / 6, 2.0, 0)),
        ({"min_reward": 0.7}, [1, 4], (2 / 9, (1 + 0.75) / 2, 1.0, 1)),
        ({"keep": 3, "min_reward": 0.4}, [0, 1, 2, 4], (4 / 9, (0.5 + 1 + 0.4 + 0.75) / 4, 2.0, 1)),
    ],
)
def test_it_is_sft_on_what_is_kept(options: dict[str, Any], kept: list[int], figures: tuple[float, ...]) -> None:
    method, before, after = ready(**options)
    batch = method.advantage(sampled())
    assert batch.trained_BT.any(1).nonzero()[:, 0].tolist() == kept
    assert batch.signals.advantages_BT[:, 0].nonzero()[:, 0].tolist() == kept
    names = ("kept/share", "kept/reward", "kept/distinct", "kept/groups_rejected")
    assert batch.signals.metrics == pytest.approx(dict(zip(names, figures, strict=True)))
    got = method.update(batch)
    wanted = plain_loss(before, kept)
    assert got["loss/nll"] == pytest.approx(float(wanted.detach()), abs=1e-10)
    for old, new, gradient in zip(
        before.parameters(), after.parameters(), torch.autograd.grad(wanted, list(before.parameters())), strict=True
    ):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


def test_a_round_may_have_several_updates_on_one_set() -> None:
    method, before, after = ready(updates_per_round=3)
    method.update(method.advantage(sampled()))
    for _ in range(3):
        gradients = torch.autograd.grad(plain_loss(before, [1, 4, 7]), list(before.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(before.parameters(), gradients, strict=True):
                weight -= RATE * gradient
    for wanted, got in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.allclose(wanted, got, atol=1e-10)


def test_a_round_that_keeps_nothing_passes_and_is_explained() -> None:
    method, before, after = ready(min_reward=2.0)
    batch = method.advantage(sampled())
    assert method.update(batch) == {}
    assert all(torch.equal(*pair) for pair in zip(before.parameters(), after.parameters(), strict=True))
    assert batch.signals.metrics["kept/groups_rejected"] == 3
    assert math.isnan(batch.signals.metrics["kept/reward"])
    assert "no sample of this round was kept" in method.explain(batch.signals.metrics)[0]
