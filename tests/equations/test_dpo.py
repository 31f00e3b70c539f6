"""DPO (§4.9) against a plain rewriting, one row at a time, for every cut into microbatches."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from support.tiny_models import tiny_policy
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.parts import Parts

# Unequal lengths, and one prompt twice.
ROWS = [
    {"prompt": "say hot:", "chosen": "hot", "rejected": "a colder word"},
    {"prompt": "a", "chosen": "bcdefghij", "rejected": "x"},
    {"prompt": "with a space ", "chosen": "x", "rejected": "yz"},
    {"prompt": "a", "chosen": "q", "rejected": "rs"},
]
RATE = 0.1


def stepped(microbatch_tokens: int, *, shares: bool = True, **options: Any) -> tuple[dict[str, float], Any, Any, Any]:
    """The step's figures; the model at the run's start, before the step, and after it."""
    policy = tiny_policy("gpt2", dtype=torch.float64)
    policy.shares_prompts = shares
    reference = Reference.of(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    before = deepcopy(policy.model)
    config = check_config(
        {
            "method": {"name": "dpo", **options},
            "data": {"train": "pairs.jsonl"},
            "optimizer": {"actor_lr": RATE, "max_grad_norm": 1e9},
            "microbatch_tokens": microbatch_tokens,
        },
        "test",
    )
    method = build_method(Parts.of(config, policy, reference, lambda batch: batch))
    (actor,) = method.update.optimized  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=RATE)
    batch = method.advantage(method.reward(method.rollout(ROWS, 0)))
    return method.update(batch), reference.policy.model, before, policy.model


def plain_logp(model: Any, prompt: str, text: str) -> Tensor:
    """log π of a whole text and its end."""
    tokenizer = tiny_policy("gpt2").tokenizer
    head = tokenizer(prompt)["input_ids"]
    tail = [*tokenizer(text)["input_ids"], 0]
    logits = model(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tail)[:, None]).sum()


def plain_terms(model: Any, start: Any | None, beta: float) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {}
    for row in ROWS:
        won, lost = (plain_logp(model, row["prompt"], row[side]) for side in ("chosen", "rejected"))
        won0, lost0 = (
            plain_logp(start, row["prompt"], row[side]).detach() if start is not None else torch.tensor(0.0)
            for side in ("chosen", "rejected")
        )
        margin = beta * (won - won0) - beta * (lost - lost0)
        for name, value in {
            "loss/dpo": torch.log(1 + torch.exp(-margin)),
            "rewards/chosen": beta * (won - won0),
            "rewards/rejected": beta * (lost - lost0),
            "rewards/margins": margin,
            "rewards/accuracies": (margin > 0).double(),
            "logps/chosen": won,
            "logps/rejected": lost,
        }.items():
            found.setdefault(name, []).append(value)
    return {name: torch.stack(values).mean() for name, values in found.items()}


@pytest.mark.parametrize(
    ("options", "beta"),
    [({}, 0.1), ({"beta": 0.7}, 0.7), ({"reference_free": True}, 1.0), ({"reference_free": True, "beta": 0.2}, 0.2)],
)
def test_loss_figures_and_gradient_equal_the_plain_ones(options: dict[str, Any], beta: float) -> None:
    figures, start, before, after = stepped(40, **options)
    wanted = plain_terms(before, None if options.get("reference_free") else start, beta)
    for name, value in wanted.items():
        assert figures[name] == pytest.approx(float(value.detach()), abs=1e-10), name
    gradients = torch.autograd.grad(wanted["loss/dpo"], list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


@pytest.mark.parametrize("shares", [True, False])
def test_every_cut_has_the_same_gradient(shares: bool) -> None:
    whole_figures, _, _, whole = stepped(10_000, shares=shares)
    for tokens in (1, 20, 40, 60, 90, 150):
        figures, _, _, cut = stepped(tokens, shares=shares)
        assert figures == pytest.approx(whole_figures, abs=1e-12)
        for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-14, rtol=1e-12)


def test_at_the_start_nothing_is_preferred() -> None:
    """π₁ = π₀: every margin is 0 and the loss is log 2, whatever the texts."""
    policy = tiny_policy("gpt2", dtype=torch.float64)
    config = check_config({"method": {"name": "dpo"}, "data": {"train": "pairs.jsonl"}}, "test")
    method = build_method(Parts.of(config, policy, Reference.of(policy), lambda batch: batch))
    assert method.evaluate is not None
    figures = method.evaluate(ROWS)
    assert figures["loss/dpo"] == pytest.approx(math.log(2))
    assert figures["rewards/margins"] == 0.0
    assert figures["rewards/accuracies"] == 0.0


def plain_means(model: Any, row: dict[str, str]) -> tuple[Tensor, Tensor]:
    """The mean log-prob of the chosen text's tokens and of the rejected one's, their ends included."""
    tokenizer = tiny_policy("gpt2").tokenizer
    lengths = [len(tokenizer(row[side])["input_ids"]) + 1 for side in ("chosen", "rejected")]
    texts = (plain_logp(model, row["prompt"], row[side]) for side in ("chosen", "rejected"))
    won, lost = (logp / length for logp, length in zip(texts, lengths, strict=True))
    return won, lost


def plain_variant(loss: str, model: Any, start: Any, beta: float) -> Tensor:
    """One row at a time."""
    values = []
    for row in ROWS:
        won, lost = plain_means(model, row)
        if loss == "ipo":
            won0, lost0 = (mean.detach() for mean in plain_means(start, row))
            values.append((won - won0 - (lost - lost0) - 1 / (2 * beta)) ** 2)
        elif loss == "simpo":
            values.append(torch.log(1 + torch.exp(-(beta * (won - lost) - 0.5))))
        else:
            odds = (won.exp() / (1 - won.exp())) / (lost.exp() / (1 - lost.exp()))
            values.append(-won + beta * torch.log(1 + 1 / odds))
    return torch.stack(values).mean()


@pytest.mark.parametrize(
    ("options", "beta"),
    [
        ({"loss": "ipo", "beta": 0.3}, 0.3),
        ({"loss": "simpo", "gamma": 0.5}, 2.0),
        ({"loss": "orpo"}, 0.1),
    ],
)
@pytest.mark.parametrize("microbatch_tokens", [20, 10_000])
def test_variants_have_the_plain_gradient(options: dict[str, Any], beta: float, microbatch_tokens: int) -> None:
    figures, start, before, after = stepped(microbatch_tokens, **options)
    wanted = plain_variant(options["loss"], before, start, beta)
    logged = figures[f"loss/{options['loss']}"]
    total = figures["loss/nll"] + beta * logged if options["loss"] == "orpo" else logged
    assert total == pytest.approx(float(wanted.detach()), abs=1e-10)
    gradients = torch.autograd.grad(wanted, list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"gamma": 0.5}, "SimPO's margin"),
        ({"loss": "ipo", "reference_free": True}, "`reference_free` has no effect with `loss: ipo`"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_config({"method": {"name": "dpo", **options}, "data": {"train": "pairs.jsonl"}}, "test")
