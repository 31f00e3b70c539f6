"""SFT (eq. 1-2) against a plain rewriting, one row at a time, and as the policy gradient whose advantage is 1."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch

from support.plain_descent import descending
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.losses import nll, policy_gradient
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import Row
from vigneron.policy.chat import MODEL, USER, add_chat_tokens
from vigneron.policy.model import Policy
from vigneron.rollout.demonstrations import Demonstrations

ROWS = [
    {"prompt": "say hot:", "answer": "hot"},
    {"prompt": "a", "answer": "bcdef"},
    {"prompt": "with a space ", "answer": "x"},
]
RATE = 0.1


def as_bytes(text: str) -> list[int]:
    """Ids of the tests' tokenizer, one a byte."""
    return tiny_policy("gpt2").tokenizer(text)["input_ids"]


def stepped(
    aggregation: str, microbatch_tokens: int, rows: list[Row] = ROWS, policy: Policy | None = None, **options: Any
) -> tuple[dict[str, float], Any, Any]:
    """The step's figures, the model before, and the model after one step of plain gradient descent."""
    policy = policy or tiny_policy("gpt2", dtype=torch.float64)
    before = deepcopy(policy.model)
    given = {"name": "sft", "aggregation": aggregation, **options}
    data = {"task": "antonyms"}
    method = descending(policy, RATE, method=given, data=data, microbatch_tokens=microbatch_tokens)
    batch = method.advantage(method.reward(method.rollout(rows, 0)))
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
    assert batch.samples.completion_lists() == (
        (*as_bytes(" hot"), 0),
        (*as_bytes(" bcdef"), 0),
        (*as_bytes("x"), 0),  # the prompt ends in a space already
    )
    assert batch.samples.mask_BT.sum(1).tolist() == [5, 7, 2]
    assert batch.samples.columns["answer"] == ("hot", "bcdef", "x")


def test_a_conversation_gets_no_space() -> None:
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "answer": "yo"}]
    assert Demonstrations(tiny_policy("gpt2"))(rows).samples.completion_lists() == ((*as_bytes("yo"), 0),)


def chat_policy() -> Policy:
    """GPT-2 with tied embeddings and two minted tokens."""
    policy = tiny_policy("gpt2", dtype=torch.float64)
    add_chat_tokens(policy.model, policy.tokenizer)
    return policy


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


TALK = [turn("user", "ab"), turn("assistant", "cde"), turn("user", "f"), turn("assistant", "g")]
CHATS = with_prompts_and_answers(
    [
        {"messages": TALK},
        {"prompt": TALK[:3], "completion": TALK[3:]},
        {"prompt": TALK[:1], "completion": TALK[1:]},
        {"prompt": TALK[:3], "answer": "g"},
        {"prompt": "ab", "completion": "cd"},
        {"prompt": "ab", "answer": "cd"},
    ],
    "test",
)


def by_hand(policy: Policy) -> list[tuple[list[int], list[int]]]:
    """Each row of CHATS as ids, and the places in it of the tokens that are learned: the answers, each with its end."""
    user, model = policy.tokenizer.convert_tokens_to_ids([USER, MODEL])
    talk = [user, *as_bytes("ab"), model, *as_bytes("cde"), 0, user, *as_bytes("f"), model, *as_bytes("g"), 0]
    return [
        (talk, [4, 5, 6, 7, 11, 12]),
        (talk, [11, 12]),
        (talk, [4, 5, 6, 7, 11, 12]),
        (talk, [11, 12]),
        ([*as_bytes("abcd"), 0], [2, 3, 4]),
        ([*as_bytes("ab cd"), 0], [2, 3, 4, 5]),
    ]


def all_but_the_first(rows: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    return [(ids, list(range(1, len(ids)))) for ids, _ in rows]


@pytest.mark.parametrize("microbatch_tokens", [16, 1000])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("loss_on", ["answers", "text"])
@pytest.mark.parametrize("aggregation", ["tokens", "samples", "sum_over_samples"])
def test_every_format_and_both_losses_have_the_plain_gradient(
    aggregation: str, loss_on: str, packing: bool, microbatch_tokens: int
) -> None:
    options = {"loss_on": loss_on, "packing": packing}
    figures, before, after = stepped(aggregation, microbatch_tokens, CHATS, chat_policy(), **options)
    rows = by_hand(chat_policy()) if loss_on == "answers" else all_but_the_first(by_hand(chat_policy()))
    losses = []
    for ids, learned in rows:
        logprobs = before(torch.tensor([ids])).logits[0].log_softmax(-1)
        losses.append(-torch.stack([logprobs[t - 1, ids[t]] for t in learned]))
    wanted = {
        "tokens": torch.cat(losses).mean(),
        "samples": torch.stack([row.mean() for row in losses]).mean(),
        "sum_over_samples": torch.stack([row.sum() for row in losses]).mean(),
    }[aggregation]
    assert figures["loss/nll"] == pytest.approx(float(wanted.detach()), abs=1e-10)
    gradients = torch.autograd.grad(wanted, list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


@pytest.mark.parametrize(("loss_on", "learned"), [("answers", [6, 2, 6, 2, 3, 4]), ("text", [12, 12, 12, 12, 4, 5])])
def test_equation_2_by_hand_where_every_token_is_as_likely_as_any(loss_on: str, learned: list[int]) -> None:
    """A model of zeros gives each of its 260 tokens 1/260: a text's NLL is ln 260 for each token that is learned."""
    policy = chat_policy()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    figures, *_ = stepped("sum_over_samples", 1000, CHATS, policy, loss_on=loss_on)
    assert figures["loss/nll"] == pytest.approx(math.log(260) * sum(learned) / 6, abs=1e-9)
    batch = Demonstrations(chat_policy(), "answers" if loss_on == "answers" else "text")(CHATS)
    assert batch.samples.mask_BT.sum(1).tolist() == learned


def test_minted_embeddings_learn_from_the_first_step() -> None:
    """Both start as the mean: the gradient tells them apart."""
    policy = chat_policy()
    ids = policy.tokenizer.convert_tokens_to_ids([USER, MODEL])
    _, before, after = stepped("tokens", 1000, CHATS, policy)
    (user, model), (new_user, new_model) = (m.get_input_embeddings().weight[ids] for m in (before, after))
    assert torch.equal(user, model)
    assert not torch.allclose(new_user, user, atol=1e-6)
    assert not torch.allclose(new_user, new_model, atol=1e-6)
