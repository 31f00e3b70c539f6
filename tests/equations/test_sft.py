"""SFT (eq. 1-2) against a plain rewriting, one row at a time, and as the policy gradient whose advantage is 1."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from conftest import tiny_policy
from vigneron.batch import Batch
from vigneron.core.losses import nll, policy_gradient
from vigneron.methods import METHODS
from vigneron.policy.model import Reference
from vigneron.recipe import check_config
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.training.slots import Parts

ROWS = [
    {"prompt": "say hot:", "answer": "hot"},
    {"prompt": "a", "answer": "bcdef"},
    {"prompt": "with a space ", "answer": "x"},
]
RATE = 0.1


def as_bytes(text: str) -> list[int]:
    """Ids of the tests' tokenizer, one a byte."""
    return tiny_policy("gpt2").tokenizer(text)["input_ids"]


def stepped(aggregation: str, microbatch_tokens: int) -> tuple[dict[str, float], Any, Any]:
    """The step's figures, the model before, and the model after one step of plain gradient descent."""
    policy = tiny_policy("gpt2", dtype=torch.float64)
    before = deepcopy(policy.model)
    config = check_config(
        {
            "method": {"name": "sft", "aggregation": aggregation},
            "data": {"task": "antonyms"},
            "optimizer": {"actor_lr": RATE, "max_grad_norm": 1e9},
            "microbatch_tokens": microbatch_tokens,
        },
        "test",
    )
    method = METHODS["sft"](Parts(config, policy, Reference.of(policy), lambda batch: batch))
    (actor,) = method.update.players  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=RATE)
    batch = method.advantage(method.reward(method.rollout(ROWS, 0)))
    return method.update(batch), before, policy.model


def plain_losses(model: Any) -> list[torch.Tensor]:
    """−log π of each token of each answer and of the end after it."""
    losses = []
    for row in ROWS:
        prompt = as_bytes(row["prompt"])
        answer = [*as_bytes(row["answer"] if row["prompt"].endswith(" ") else f" {row['answer']}"), 0]
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        losses.append(-logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0])
    return losses


@pytest.mark.parametrize("microbatch_tokens", [8, 1000])
@pytest.mark.parametrize("aggregation", ["tokens", "samples", "sum_over_samples"])
def test_loss_and_gradient_equal_the_plain_ones(aggregation: str, microbatch_tokens: int) -> None:
    figures, before, after = stepped(aggregation, microbatch_tokens)
    losses = plain_losses(before)
    wanted = {
        "tokens": torch.cat(losses).mean(),
        "samples": torch.stack([row.mean() for row in losses]).mean(),
        "sum_over_samples": torch.stack([row.sum() for row in losses]).mean(),  # eq. 2
    }[aggregation]
    assert figures["loss/nll"] == pytest.approx(float(wanted.detach()), abs=1e-10)
    gradients = torch.autograd.grad(wanted, list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


def test_it_is_the_policy_gradient_of_advantage_one() -> None:
    logprobs = -torch.rand(2, 3)
    assert torch.equal(nll(logprobs), policy_gradient(logprobs, torch.ones(2, 3)))


def test_a_demonstration_is_the_answer_as_the_child_would_write_it_and_its_end() -> None:
    batch: Batch = Demonstrations(tiny_policy("gpt2"))(ROWS)
    assert batch.completion_lists() == (
        (*as_bytes(" hot"), 0),
        (*as_bytes(" bcdef"), 0),
        (*as_bytes("x"), 0),  # the prompt ends in a space already
    )
    assert batch.mask_BT.sum(1).tolist() == [5, 7, 2]
    assert batch.columns["answer"] == ("hot", "bcdef", "x")


def test_a_conversation_gets_no_space() -> None:
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "answer": "yo"}]
    assert Demonstrations(tiny_policy("gpt2"))(rows).completion_lists() == ((*as_bytes("yo"), 0),)
