"""Sampling: the log-probs are those of what was sampled, and a sample depends on nothing but its key."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_models import tiny_policy
from vigneron.core.draws import Sampling
from vigneron.data.prompts import texts_of
from vigneron.errors import UserError
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.rollout.engine.sample import sample
from vigneron.rollout.on_policy import OnPolicy

PROMPTS = [[5, 9, 33, 2], [7, 8], [40, 41, 42, 43, 44, 45], [1], [100, 101, 102]]
SAMPLINGS = [Sampling(), Sampling(temperature=0.6), Sampling(top_k=5), Sampling(temperature=1.5, top_p=0.7)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_behaviour_log_probs_are_those_of_a_teacher_forced_pass(policy: Policy, sampling: Sampling) -> None:
    rollout = OnPolicy(policy, sampling, max_new_tokens=8, group_size=3, seed=4)
    batch = rollout([{"prompt": text} for text in ("hot", "a longer prompt", "x")], step=2)
    with torch.no_grad():
        forced = score(policy, batch, sampling).logprobs_BT
    mask = batch.samples.mask_BT
    torch.testing.assert_close(batch.samples.behaviour_BT[mask], forced[mask], atol=1e-4, rtol=0)
    assert (batch.samples.behaviour_BT[mask] < 0).all()
    assert (batch.samples.behaviour_BT[~mask] == 0).all()


@pytest.mark.parametrize("kind", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
@given(order=st.permutations(range(5)), keep=st.integers(1, 5), budget=st.sampled_from([1, 20, 40, 10_000]))
@settings(max_examples=10, deadline=None)
def test_neighbours_buckets_and_order_never_change_what_a_sample_gets(
    kind: str, order: list[int], keep: int, budget: int
) -> None:
    policy = tiny_policy(kind)
    whole = sample(policy, PROMPTS, max_new_tokens=6, sampling=Sampling(), seed=3, step=9)
    some = order[:keep]
    part = sample(
        policy,
        [PROMPTS[i] for i in some],
        max_new_tokens=6,
        sampling=Sampling(),
        seed=3,
        step=9,
        sample_ids=some,
        microbatch_tokens=budget,
    )
    for row, which in enumerate(some):
        length = int(whole.lengths_B[which])
        assert int(part.lengths_B[row]) == length
        assert part.ids_BT[row, :length].tolist() == whole.ids_BT[which, :length].tolist()
        torch.testing.assert_close(
            part.behaviour_BT[row, :length], whole.behaviour_BT[which, :length], atol=1e-5, rtol=0
        )


def test_seed_step_and_sample_each_change_the_draw() -> None:
    policy = tiny_policy()
    draws = {
        tuple(sample(policy, [[5, 6]], max_new_tokens=12, sampling=Sampling(), **key).ids_BT[0].tolist())
        for key in ({"seed": 0}, {"seed": 1}, {"step": 1}, {"sample_ids": [1]})
    }
    assert len(draws) == 4


def test_greedy_completions_are_those_of_generate(policy: Policy) -> None:
    done = sample(policy, PROMPTS, max_new_tokens=10)
    for row, prompt in enumerate(PROMPTS):
        expected = policy.model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=10, pad_token_id=0, eos_token_id=0
        )[0, len(prompt) :].tolist()
        assert done.ids_BT[row, : int(done.lengths_B[row])].tolist() == expected


def test_a_completion_ends_with_any_end_id_and_one_without_is_marked_as_cut() -> None:
    policy = tiny_policy()
    likely = sample(policy, PROMPTS, max_new_tokens=1).ids_BT[0, 0].item()
    policy.eos_ids = frozenset({0, likely})
    done = sample(policy, PROMPTS * 20, max_new_tokens=5, sampling=Sampling(temperature=0.3), seed=1)
    for ids, length, cut in zip(done.ids_BT.tolist(), done.lengths_B.tolist(), done.truncated_B.tolist(), strict=True):
        kept = ids[:length]
        assert not any(token in policy.eos_ids for token in kept[:-1])
        assert cut == (kept[-1] not in policy.eos_ids)
        assert length == 5 or not cut
    assert done.truncated_B.any()
    assert not done.truncated_B.all()


@pytest.mark.parametrize("place", [0, 1])
def test_samples_follow_the_models_distribution(place: int) -> None:
    """Chi-square on a token of 4,000 samples of one prompt; the bound is far past the 0.1 % quantile.

    The first token comes from the prompt's pass, the second, summed over all firsts, from a step with the cache.
    """
    policy = tiny_policy()
    with torch.no_grad():
        probabilities = policy.model(torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)
        if place == 1:
            policy.eos_ids = frozenset()
            size = len(probabilities)
            after = policy.model(torch.tensor([[5, 6, token] for token in range(size)])).logits[:, -1].softmax(-1)
            probabilities = probabilities @ after
    count = 4000
    done = sample(policy, [[5, 6]] * count, max_new_tokens=place + 1, sampling=Sampling())
    observed = torch.bincount(done.ids_BT[:, place], minlength=len(probabilities))
    chi = (((observed - count * probabilities) ** 2) / (count * probabilities)).sum().item()
    freedom = len(probabilities) - 1
    assert freedom - 4 * (2 * freedom) ** 0.5 < chi < freedom + 4 * (2 * freedom) ** 0.5


def test_a_prompt_that_does_not_fit_is_named_and_counted() -> None:
    policy = tiny_policy()
    with pytest.raises(UserError, match=r"1 prompts do not fit.*context of 64 tokens.*prompt 2"):
        sample(policy, [[1], [1] * 62], max_new_tokens=4)


def test_the_rollout_keeps_spans_groups_columns_and_texts() -> None:
    policy = tiny_policy()
    rollout = OnPolicy(policy, Sampling(), max_new_tokens=4, group_size=2)
    chat = [{"role": "user", "content": "hi"}]
    batch = rollout([{"prompt": "abc", "answer": "x"}, {"prompt": chat, "answer": "y"}])
    assert batch.samples.group_B.tolist() == [0, 0, 1, 1]
    assert batch.samples.sample_B.tolist() == [0, 1, 2, 3]
    assert batch.samples.columns == {"answer": ("x", "x", "y", "y")}
    for row, (ids, spans) in enumerate(zip(batch.samples.prompt_ids, batch.samples.spans, strict=True)):
        ((start, stop),) = spans
        assert start == len(ids)
        text = policy.tokenizer.decode(batch.samples.completion_BT[row, : stop - start], skip_special_tokens=True)
        completion = batch.samples.completions[row]
        assert (completion if row < 2 else completion[0]["content"]) == text
    assert policy.tokenizer.decode(list(batch.samples.prompt_ids[2])) == "user: hi\nanswer: "


def test_texts_are_those_of_the_tokenizer() -> None:
    tokenizer = tiny_policy().tokenizer
    ids = [[5, 9, 0], [100, 101, 102, 0, 0], [0]]
    assert texts_of(tokenizer, ids) == [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
