"""Phi-3 128k: a sequence's own length chooses its rotary frequencies, never its neighbours, in sampling and scoring."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.longrope import LONG, LongRope
from vigneron.policy.microbatches import microbatches
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.sample import sample, sampler_of

FAMILY, SWITCH = "Phi-3 128k (longrope)", 32


def longrope_policy() -> Policy:
    policy = make_policy(zoo_model(FAMILY), byte_tokenizer(), device=torch.device("cpu"))
    policy.eos_ids = frozenset()
    check_head(policy)
    assert can_share_prompts(policy)
    return policy


def by_transformers(prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Of one sequence alone, by a model that is as transformers made it."""
    with torch.no_grad():
        logits = zoo_model(FAMILY)(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def test_a_sequence_of_more_tokens_than_the_switch_is_long() -> None:
    rope = LongRope(SWITCH)
    assert [rope.offset(20, completion) for completion in (12, 13)] == [0, LONG]
    assert [LongRope(SWITCH, margin=10).offset(prompt, 3) for prompt in (22, 23)] == [0, LONG]
    assert rope.split(20, [0, 1, 2], [5, 13, 12]) == [[0, 2], [1]]


@pytest.mark.parametrize("pack", [False, True])
def test_neighbours_do_not_change_a_score(pack: bool) -> None:
    """Short and long completions of one prompt, and of others, in one batch and in one row."""
    policy = longrope_policy()
    prompts = [list(range(1, 21)), [5, 6, 7]]
    pairs = [(p, list(range(30 + c, 30 + c + size))) for p in prompts for c, size in enumerate((4, 20, 12, 35))]
    batch = batch_of(pairs).with_packing(pack=pack)
    parts = microbatches(batch, 400)
    assert any(part.packing.per_row > 1 for part in parts)
    for part in parts:
        with torch.no_grad():
            got = score(policy, part, Sampling()).logprobs_BT
        for row, completion in enumerate(part.samples.completion_lists()):
            expected = by_transformers(list(part.samples.prompt_ids[row]), list(completion))
            torch.testing.assert_close(got[row, : len(completion)], expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [Engine, GenerateSampler])
def test_neighbours_do_not_change_a_sample(sampler: Any) -> None:
    policy = longrope_policy()
    if sampler is GenerateSampler:
        policy.sampler = GenerateSampler(policy, "layers of another kind")
    prompts = [list(range(1, 41)), [5, 6, 7], list(range(1, 21)), [9]]
    done = sample(policy, prompts, max_new_tokens=14, sampling=Sampling(), seed=1)
    assert isinstance(policy.sampler, sampler)
    for row, prompt in enumerate(prompts):  # the third one begins short and ends long
        expected = by_transformers(prompt, done.ids_BT[row].tolist())
        torch.testing.assert_close(done.behaviour_BT[row], expected, atol=1e-4, rtol=0)
        alone = sample(policy, [prompt], max_new_tokens=14, sampling=Sampling(), seed=1, sample_ids=[row])
        assert alone.ids_BT[0].tolist() == done.ids_BT[row].tolist()


@pytest.mark.parametrize("sampler", [Engine, GenerateSampler])
def test_a_sample_that_ends_before_the_switch_is_scored_as_it_was_sampled(sampler: Any) -> None:
    policy = longrope_policy()
    if sampler is GenerateSampler:
        policy.sampler = GenerateSampler(policy, "layers of another kind")
    assert policy.long_rope is not None
    policy.eos_ids = frozenset(range(0, 260, 3))
    policy.long_rope = replace(policy.long_rope, margin=20)
    prompts = [list(range(1, 21))] * 6
    done = sample(policy, prompts, max_new_tokens=20, sampling=Sampling(), seed=1)
    lengths = done.lengths_B.tolist()
    assert min(lengths) + 20 <= SWITCH
    pairs = [(p, done.ids_BT[row, : lengths[row]].tolist()) for row, p in enumerate(prompts)]
    with torch.no_grad():
        for one in (policy, policy.frozen_copy()):
            got = score(one, batch_of(pairs).with_packing(per_row=6), Sampling()).logprobs_BT
            torch.testing.assert_close(got, done.behaviour_BT, atol=1e-4, rtol=0)


def test_the_engine_samples_where_every_completion_may_be_long() -> None:
    policy = longrope_policy()
    assert policy.long_rope is not None
    policy.long_rope = replace(policy.long_rope, margin=SWITCH)
    assert isinstance(sampler_of(policy), Engine)
