"""Conversations in the engine: replies are read into the cache that is there, and every turn is what a plain model
would draw, whatever the rows, the order of replies and the waiting."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.scripted_turns import Scripted, check, forced
from support.tiny_models import byte_tokenizer, tiny_policy
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.rollout.engine import engine as engine_module
from vigneron.rollout.engine import reply_chunks
from vigneron.rollout.engine.by_turns import sample_by_turns
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.request import Request, Turn
from vigneron.rollout.engine.sample import sample, sampler_of

REPLY = st.integers(1, 6) | st.integers(8, 12)  # those that are read one token a step, and in a chunk
LENGTHS = st.lists(st.lists(REPLY, max_size=3), min_size=1, max_size=7)


@pytest.mark.slow
@given(
    lengths=LENGTHS,
    rows=st.integers(1, 8),
    patience=st.sampled_from([0, 2, 5]),
    ends=st.sets(st.integers(0, 255), max_size=90),
    copies=st.integers(1, 3),
    sampling=st.sampled_from([Sampling(), Sampling(temperature=0.7), None]),
)
@settings(max_examples=6, deadline=None)
def test_every_turn_is_what_a_plain_model_draws(
    lengths: list[list[int]], rows: int, patience: int, ends: set[int], copies: int, sampling: Sampling | None
) -> None:
    policy = tiny_policy("llama")
    policy.eos_ids = frozenset(ends)
    lengths = [each for each in lengths for _ in range(copies)]
    prompts = [[1 + i // copies, 2, 3] for i in range(len(lengths))]
    wide = Scripted(lengths, 30)
    options = {"max_new_tokens": 5, "max_tokens": 30, "sampling": sampling, "seed": 3, "step": 2}
    whole = sample(policy, prompts, replies=wide, **options)
    check(policy, prompts, whole, wide, sampling)
    cache = policy.sampler._cache
    cache._limit = rows * cache.token_bytes * 33
    narrow = Scripted(lengths, 30, patience)
    done = sample(policy, prompts, replies=narrow, **options)
    check(policy, prompts, done, narrow, sampling)
    assert torch.equal(done.ids_BT, whole.ids_BT)
    assert torch.equal(done.truncated_B, whole.truncated_B)


@pytest.mark.parametrize("kind", ["llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_replies_are_read_in_rounded_sizes_for_cuda_graphs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU nothing is captured, but rows, widths and slots are rounded up."""
    monkeypatch.setattr(reply_chunks, "READ_FROM", 2)
    policy = tiny_policy(kind)
    policy.eos_ids = frozenset(range(0, 256, 5))
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    lengths = [[(3 * i + k) % 9 + 2 for k in range(i % 4)] for i in range(26)]
    prompts = [[1 + i // 2, 2, 3] for i in range(26)]
    options = {"max_new_tokens": 7, "max_tokens": 60, "sampling": Sampling(), "seed": 3, "step": 2}
    exact, rounded = (Scripted(lengths, 60, patience=2) for _ in range(2))
    done = sample(policy, prompts, replies=exact, **options)
    reads: list[tuple[int, int, int]] = []
    read = engine._read

    def noting(first: int, past: int, width: int, row_N: torch.Tensor, length_N: torch.Tensor) -> torch.Tensor:
        assert max(length_N.tolist()) <= width
        reads.append((len(row_N), past, width))
        return read(first, past, width, row_N, length_N)

    monkeypatch.setattr(engine, "_read", noting)
    engine.graphed = True
    same = sample(policy, prompts, replies=rounded, **options)
    check(policy, prompts, same, rounded, Sampling())
    assert torch.equal(same.ids_BT, done.ids_BT)
    assert reads
    assert all(past % 64 == 0 for _, past, _ in reads)
    assert len({rows for rows, _, _ in reads}) <= 6


def test_memory_that_was_given_back_is_zeros_for_a_conversation() -> None:
    """What masks hide is multiplied by 0, which gives NaN where the memory has NaN."""

    class Memory:
        bytes = torch.ones(4)

        def restore(self) -> None: ...
        def release(self) -> None: ...

    policy = tiny_policy("llama")
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    options = {"max_new_tokens": 2, "max_tokens": 12}
    sample(policy, [[1]], replies=Scripted([[3]], 12), **options)  # its checks, and the cache of this size
    engine._cache._memory = Memory()  # type: ignore[assignment]
    sample(policy, [[1]], max_new_tokens=12)
    assert Memory.bytes.sum() == 4
    sample(policy, [[1]], replies=Scripted([[3]], 12), **options)
    assert Memory.bytes.sum() == 0


@pytest.mark.slow
def test_turns_of_one_token_in_few_rows() -> None:
    """A sample whose turn has ended with its first token keeps its row."""
    policy = tiny_policy("llama")
    policy.eos_ids = frozenset(range(0, 256, 2))
    lengths, prompts = [[2, 1], [3], [], [1, 1, 1], [2]] * 3, [[1 + i, 2] for i in range(15)]
    sampler_of(policy)
    cache = policy.sampler._cache
    for rows, patience in ((2, 7), (3, 1), (15, 7)):
        cache._limit = rows * cache.token_bytes * 22
        script = Scripted(lengths, 20, patience)
        done = sample(policy, prompts, max_new_tokens=1, max_tokens=20, sampling=Sampling(), replies=script)
        check(policy, prompts, done, script, Sampling())


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_turns_as_requests_of_their_own_draw_the_same(kind: str) -> None:
    policy = tiny_policy(kind)
    policy.eos_ids = frozenset(range(0, 256, 5))
    lengths, prompts = [[3, 2], [], [1, 6, 2], [4]], [[5, 6], [5, 6], [9], [1, 2, 3]]
    kept, again, generated = (Scripted(lengths, 24) for _ in range(3))
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    request = Request(prompts, 6, Sampling(), 1, 4, [3, 8, 2, 0], 64, replies=kept, max_tokens=24)
    one = engine.sample(request)
    for script, sampler in ((again, engine), (generated, GenerateSampler(policy, ""))):
        other = sample_by_turns(policy, sampler, Request(**{**vars(request), "replies": script}))
        assert script.turns == kept.turns
        assert torch.equal(other.ids_BT, one.ids_BT)
        assert torch.equal(other.lengths_B, one.lengths_B)
        assert torch.equal(other.truncated_B, one.truncated_B)
        torch.testing.assert_close(other.behaviour_BT, one.behaviour_BT, atol=1e-5, rtol=0)
        torch.testing.assert_close(other.prompt_hidden_BH, one.prompt_hidden_BH, atol=1e-5, rtol=0)


def test_replies_are_asked_for_while_others_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's next steps are begun before the host works on the turns that have ended."""
    policy = tiny_policy("llama")
    policy.eos_ids = frozenset(range(0, 256, 5))
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    sample(policy, [[1]], max_new_tokens=2, max_tokens=12, replies=Scripted([[3]], 12))  # its checks decode too
    steps, asked, taken = [0], {}, {}
    decode = engine.decode

    def counted(*arguments: Any) -> None:
        steps[0] += 1
        decode(*arguments)

    class Noting(Scripted):
        def ask(self, turns: Sequence[Turn]) -> None:
            super().ask(turns)
            asked.update({turn.sample: (steps[0], len(turn.ids)) for turn in turns if turn.start == 0})

        def take(self, samples: Sequence[int]) -> list[tuple[int, ...]]:
            taken.update({sample: steps[0] for sample in samples if sample not in taken})
            return super().take(samples)

    monkeypatch.setattr(engine, "decode", counted)
    prompts = [[5 + i, 6] for i in range(6)]
    script = Noting([[3]] * 6, 40, patience=2)
    done = sample(policy, prompts, max_new_tokens=12, max_tokens=40, sampling=Sampling(), replies=script)
    check(policy, prompts, done, script, Sampling())
    longest = max(length for _, length in asked.values())
    others = {sample: (step, length) for sample, (step, length) in asked.items() if length < longest - 2}
    assert len(others) > 2
    for sampled, (step, length) in others.items():
        seen = max(1, length - 1)  # its first token was drawn by the prefill; the first look is after a step
        assert step == seen + 1  # under way
        assert taken[sampled] == seen + 2  # due after two steps, of which the second is under way


def test_a_stop_string_ends_a_turn_and_one_in_a_reply_does_not() -> None:
    policy = tiny_policy("llama")
    policy.eos_ids = frozenset()

    class Letters(Scripted):
        def _reply(self, sample: int) -> tuple[int, ...]:
            ids = policy.tokenizer("a;b", add_special_tokens=False)["input_ids"]
            return tuple(ids) if len(self.turns[sample]) < 3 else ()

    script = Letters([], 80)
    done = sample(
        policy, [[1, 2]] * 12, max_new_tokens=16, max_tokens=80, sampling=Sampling(), replies=script, stop=["e"]
    )
    turns = [turn for turns in script.turns.values() for turn in turns]
    assert len(turns) == 36
    assert {turn.ended for turn in turns} == {True, False}
    for turn in turns:
        text = policy.tokenizer.decode(list(turn.ids))
        assert turn.ended == ("e" in text)
        assert "e" not in policy.tokenizer.decode(list(turn.ids[:-1]))
        assert len(turn.ids) <= 16
    assert int(done.lengths_B.max()) <= 62  # the context has 64 tokens
    for row, own in script.turns.items():
        ids = done.ids_BT[row, : int(done.lengths_B[row])].tolist()
        expected = forced(policy, [1, 2], ids, None)
        for turn in own:
            at = slice(turn.start, turn.start + len(turn.ids))
            torch.testing.assert_close(done.behaviour_BT[row, at], expected[at], atol=2e-4, rtol=0)


SLOW = ["gpt-oss", "GPT-J", "Falcon (ALiBi)", "DeepSeek V3", "Gemma 3n text"]


@pytest.mark.parametrize("kind", ["Gemma 2", "BLOOM", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_other_architectures_read_replies_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of 5 tokens, and one token a step: the log-probs of a plain pass, and the same draws."""
    monkeypatch.setattr(engine_module, "CHUNK_TOKENS", 5)
    policy = make_policy(zoo_model(kind), byte_tokenizer(), device=torch.device("cpu"))
    policy.eos_ids = frozenset(range(0, 60, 4))
    prompts, drawn = [[5, 6], [5, 6], [9], [1, 2, 3]], []
    for chunks in (None, False):
        sampler_of(policy).reads_chunks = chunks
        script = Scripted([[12, 20], [], [9, 16, 2], [8, 30]], 60)
        done = sample(policy, prompts, max_new_tokens=6, max_tokens=60, sampling=Sampling(), replies=script)
        assert sampler_of(policy).reads_chunks is (chunks is None)
        check(policy, prompts, done, script, Sampling(), tolerance=1e-5)
        drawn.append(done.ids_BT)
    assert torch.equal(*drawn)
