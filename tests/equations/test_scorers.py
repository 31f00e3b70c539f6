"""The reward model (eq. 5-6) and the preference model (§3) against plain rewritings, for several cuts into parts."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from support.plain_descent import descending
from support.tiny_models import tiny_scorer
from vigneron.policy.reward_model import scores
from vigneron.rollout.pairs import Pairs
from vigneron.training.method import Method

ROWS = [
    {"prompt": "say hot:", "chosen": "hot", "rejected": "a cold word"},
    {"prompt": "a", "chosen": "bcdefgh", "rejected": "x"},
    {"prompt": "b ", "chosen": "x", "rejected": "yz"},
    {"prompt": "a", "chosen": "q", "rejected": "rs"},
]
RATE = 0.1


def ready(name: str, microbatch_tokens: int = 60, kind: str = "gpt2") -> tuple[Method, Any, Any]:
    """The method, a plain copy of its model, and its policy; the optimizer is plain gradient descent."""
    policy = tiny_scorer(kind, dtype=torch.float64)
    data = {"train": "pairs.jsonl"}
    method = descending(policy, RATE, method={"name": name}, data=data, microbatch_tokens=microbatch_tokens)
    return method, deepcopy(policy.model), policy


def step(method: Method) -> dict[str, float]:
    return method.update(method.advantage(method.reward(method.rollout(ROWS, 0))))


def plain_score(model: Any, text: str) -> Tensor:
    """The head on the last state of a text and its end, by transformers' own pass over one row without padding."""
    model.config.pad_token_id = None
    ids = [*tiny_scorer("gpt2").tokenizer(text)["input_ids"], 0]
    return model(torch.tensor([ids])).logits[0, 0]


def plain_rewards(model: Any) -> tuple[Tensor, Tensor]:
    return tuple(  # type: ignore[return-value]
        torch.stack([plain_score(model, row["prompt"] + row[side]) for row in ROWS]) for side in ("chosen", "rejected")
    )


def plain_odds(model: Any) -> tuple[Tensor, Tensor]:
    """The logit with the chosen text first, and with the rejected one first."""
    return tuple(  # type: ignore[return-value]
        torch.stack([plain_score(model, f"{r['prompt']}\nFirst: {r[one]}\nSecond: {r[other]}\nBetter:") for r in ROWS])
        for one, other in (("chosen", "rejected"), ("rejected", "chosen"))
    )


def assert_stepped(before: Any, after: Any, loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, list(before.parameters()), allow_unused=True)
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old if gradient is None else old - RATE * gradient, atol=1e-10)


@pytest.mark.parametrize("microbatch_tokens", [1, 60, 1000])
def test_the_reward_model_equals_the_plain_one(microbatch_tokens: int) -> None:
    method, before, policy = ready("reward_model", microbatch_tokens)
    figures = step(method)
    chosen, rejected = plain_rewards(before)
    p = chosen.exp() / (chosen.exp() + rejected.exp())  # the paper's first form of P(text_w)
    loss = -p.log().mean()
    assert figures["loss/bradley_terry"] == pytest.approx(float(loss.detach()), abs=1e-10)
    assert figures["rewards/chosen"] == pytest.approx(float(chosen.detach().mean()), abs=1e-10)
    assert figures["rewards/rejected"] == pytest.approx(float(rejected.detach().mean()), abs=1e-10)
    assert figures["margin"] == pytest.approx(float((chosen - rejected).detach().mean()), abs=1e-10)
    assert figures["accuracy"] == pytest.approx(float((chosen > rejected).double().mean()))
    assert_stepped(before, policy.model, loss)


@pytest.mark.parametrize("microbatch_tokens", [1, 80, 1000])
def test_the_preference_model_equals_the_plain_one(microbatch_tokens: int) -> None:
    method, before, policy = ready("preference_model", microbatch_tokens)
    figures = step(method)
    chosen_first, rejected_first = plain_odds(before)
    p = torch.cat([chosen_first.sigmoid(), rejected_first.sigmoid()])
    preferred = torch.tensor([1.0] * len(ROWS) + [0.0] * len(ROWS))
    loss = (-preferred * p.log() - (1 - preferred) * (1 - p).log()).mean()
    assert figures["loss/preference"] == pytest.approx(float(loss.detach()), abs=1e-10)
    assert figures["accuracy"] == pytest.approx(float(((p > 0.5) == preferred.bool()).double().mean()))
    assert figures["first_preferred"] == pytest.approx(float(p.detach().mean()), abs=1e-10)
    assert_stepped(before, policy.model, loss)


def plain_calibration(p: list[float]) -> float:
    total = 0.0
    for low in range(10):
        inside = [q for q in p if low == min(9, int((max(q, 1 - q) - 0.5) * 20))]
        if inside:
            right = sum(q > 0.5 for q in inside) / len(inside)
            total += len(inside) / len(p) * abs(right - sum(max(q, 1 - q) for q in inside) / len(inside))
    return total


def test_held_out_figures_of_the_reward_model() -> None:
    method, before, _ = ready("reward_model")
    assert method.evaluate is not None
    with torch.no_grad():
        chosen, rejected = plain_rewards(before)
    margins = (chosen - rejected).tolist()
    p = [1 / (1 + math.exp(-margin)) for margin in margins]
    assert method.evaluate(ROWS) == pytest.approx(
        {
            "loss": -sum(map(math.log, p)) / len(p),
            "accuracy": sum(q > 0.5 for q in p) / len(p),
            "margin": sum(margins) / len(p),
            "calibration_error": plain_calibration(p),
        },
        abs=1e-10,
    )


def test_held_out_figures_of_the_preference_model_are_of_both_orders() -> None:
    method, before, _ = ready("preference_model")
    assert method.evaluate is not None
    with torch.no_grad():
        first, second = (odds.tolist() for odds in plain_odds(before))
    pairs = list(zip(first, second, strict=True))
    orders = [(1 / (1 + math.exp(-a)), 1 / (1 + math.exp(b))) for a, b in pairs]
    p = [(one + other) / 2 for one, other in orders]
    assert method.evaluate(ROWS) == pytest.approx(
        {
            "loss": -sum(math.log(one) + math.log(other) for one, other in orders) / 2 / len(p),
            "accuracy": sum(q > 0.5 for q in p) / len(p),
            "margin": sum(a - b for a, b in pairs) / 2 / len(p),
            "calibration_error": plain_calibration(p),
        },
        abs=1e-10,
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen", "mistral"])
def test_a_score_is_read_at_the_end_token_though_it_is_also_the_padding(kind: str) -> None:
    policy = tiny_scorer(kind, dtype=torch.float64)
    batch = Pairs(policy)(ROWS)
    with torch.no_grad():
        got = scores(policy, batch)
        policy.model.config.pad_token_id = None
        for row, (prompt, completion) in enumerate(
            zip(batch.samples.prompt_ids, batch.samples.completion_lists(), strict=True)
        ):
            assert completion[-1] == policy.pad_id
            wanted = policy.model(torch.tensor([[*prompt, *completion]])).logits[0, 0]
            assert torch.allclose(got[row], wanted, atol=1e-10)
