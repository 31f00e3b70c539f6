"""RLPR's reward, held against transformers' own pass over the same tokens."""

from typing import Any

import pytest
import torch

from support.tiny_models import tiny_policy
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.rewards.build import attach_models
from vigneron.rewards.combined import CombinedReward
from vigneron.rewards.probability import ProbabilityReward, before_answer


def plain_mean(policy: Policy, before: str, answer: str) -> float:
    """One token a byte, so the tokens of a text are those of its parts."""
    head, tail = (policy.tokenizer(text)["input_ids"] for text in (before, answer))
    with torch.no_grad():
        logits = policy.causal(torch.tensor([head + tail])).logits[0].double()
    probabilities = logits.softmax(1)
    return sum(float(probabilities[len(head) + i - 1, token]) for i, token in enumerate(tail)) / len(tail)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A large head, so that probabilities differ."""
    made = tiny_policy("llama", seed=3)
    with torch.no_grad():
        made.causal.lm_head.weight.mul_(30)
    return made


def reward_of(policy: Policy, **options: Any) -> ProbabilityReward:
    reward = ProbabilityReward(**options)
    attach_models(reward, policy)
    return reward


def test_what_comes_before_the_answer() -> None:
    assert before_answer("3 + 4\nis 7\n7\n", None) == "3 + 4\nis 7\n"
    assert before_answer("7", None) == ""
    assert before_answer("so Answer: 1, no, Answer: 7", "Answer:") == "so Answer: 1, no, Answer:"
    assert before_answer("no answer", "Answer:") is None


def test_the_mean_probability_by_an_independent_pass(policy: Policy) -> None:
    """The parent's answer takes the place of the completion's own, `9`, and nothing of that is seen."""
    reward = reward_of(policy, debias=False)
    texts = ["3 + 4 is\n9", "it is odd\n9", "9"]
    got = reward(["q: "] * 3, texts, answer=["7x"] * 3)
    wanted = [
        plain_mean(policy, f"q: {head}", tail)
        for head, tail in (("3 + 4 is\n", "7x"), ("it is odd\n", "7x"), ("", "7x"))
    ]
    assert got == pytest.approx(wanted, rel=1e-4)
    assert len({round(value or 0, 8) for value in got}) == 3, "the texts matter"
    again = reward(["q: "], ["3 + 4 is\n8, surely"], answer=["7x"])
    assert again[0] == pytest.approx(got[0], rel=1e-5)


def test_only_what_a_text_adds_is_paid(policy: Policy) -> None:
    texts = ["3 + 4 is\n9", "it is odd\n9", "9"]
    plain = reward_of(policy, debias=False)(["q: "] * 3, texts, answer=["7x"] * 3)
    bare = plain_mean(policy, "q: ", "7x")
    got = reward_of(policy)(["q: "] * 3, texts, answer=["7x"] * 3)
    assert got == pytest.approx([max(0.0, (value or 0) - bare) for value in plain], abs=1e-6)
    assert got[2] == pytest.approx(0.0, abs=1e-7)


def test_a_marker_and_what_is_missing(policy: Policy) -> None:
    reward = reward_of(policy, answer_after="A:", debias=False)
    got = reward(["q "] * 4, ["x A: 1", "no mark", "x A: 1", f"{'long ' * 20}A: 1"], answer=["7", "7", None, "7"])
    assert got[0] == pytest.approx(plain_mean(policy, "q x A:", " 7"), rel=1e-4)
    assert got[1:] == [0.0, None, None], "no place for an answer; no reference; longer than the context of 64"


def test_a_conversation_is_asked_after_its_template(policy: Policy) -> None:
    prompt = [{"role": "user", "content": "q"}]
    completion = [{"role": "assistant", "content": "so\n9"}]
    got = reward_of(policy, debias=False)([prompt], [completion], answer=["7"])
    assert got == [pytest.approx(plain_mean(policy, "user: q\nanswer: so\n", "7"), rel=1e-4)]


def test_by_the_reference_or_by_the_policy_as_it_is_now() -> None:
    policy = tiny_policy("llama", seed=3)
    reference = Reference.of(policy)
    by = {name: ProbabilityReward(by=name, debias=False) for name in ("policy", "reference")}  # type: ignore[arg-type]
    combined = CombinedReward(list(by.items()), [1.0, 1.0], "sum")
    attach_models(combined, policy, reference)

    def both() -> list[float | None]:
        return [reward(["q: "], ["a\nb"], answer=["7"])[0] for reward in by.values()]

    before = both()
    assert before[0] == before[1]
    with torch.no_grad():
        policy.causal.lm_head.weight.mul_(30)
    after = both()
    assert after[1] == before[1]
    assert after[0] == pytest.approx(plain_mean(policy, "q: a\n", "7"), rel=1e-4)
    assert after[0] != pytest.approx(before[0], rel=1e-3)
