"""Replies that are read in chunks: when it pays, attention behind shared prompts, and the check at the first reply."""

from dataclasses import replace

import pytest
import torch

from support.scripted_turns import Scripted, check
from support.tiny_models import tiny_policy
from vigneron.core.draws import Sampling
from vigneron.policy.attention import LocalAttention
from vigneron.policy.model import Policy
from vigneron.rollout.engine import agreement, cached_attention
from vigneron.rollout.engine.cached_attention import AttentionModifiers, Chunk, attend_to_chunk
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.reply_chunks import READ_FROM, reply_chunks
from vigneron.rollout.engine.sample import sample, sampler_of


def test_replies_are_read_in_chunks_where_that_saves_steps() -> None:
    few = READ_FROM - 1
    assert reply_chunks([100, few, 60, 40, 300], 5, 10_000) == [[4], [0, 2], [3]]
    assert reply_chunks([100, 100, 100], 3, 250) == [[0, 1], [2]]
    assert reply_chunks([few, few], 2, 10_000) == []
    assert reply_chunks([4 * READ_FROM], 4, 10_000) == [[0]]
    assert reply_chunks([4 * READ_FROM], 5, 10_000) == []
    assert reply_chunks([100], 1, 10) == [[0]]


@pytest.mark.parametrize("local", [None, LocalAttention(4), LocalAttention(3, chunked=True)])
@pytest.mark.parametrize(("modifiers", "scores"), [({}, 2**28), ({"softcap": 2.0}, 1)], ids=["plain", "capped, by row"])
def test_a_chunk_behind_a_shared_prompt(
    local: LocalAttention | None, modifiers: dict[str, float], scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 2 and 4 own tokens behind prompts of 5 and 3: each new token is what one query over all of its own
    sequence's keys gives."""
    torch.manual_seed(0)
    heads, key_heads, size, scale = 4, 2, 8, 0.3
    starts, owns, lengths, width = [5, 3], [2, 4], [3, 1], 3
    sequences = [torch.randn(2, key_heads, start + own + width, size) for start, own in zip(starts, owns, strict=True)]
    cache = torch.randn(2, 8, key_heads, 4, size)
    pages = [[3, 1, 5, 2], [0, 6, 4, 7]]  # of prompt and row; the last of the second row is the spare one
    place = [
        [(row[i // 4], i % 4) for i in (*range(start), *range(-(-start // 4) * 4, 16))]
        for row, start in zip(pages, starts, strict=True)
    ]
    for n, (start, own, sequence) in enumerate(zip(starts, owns, sequences, strict=True)):
        for position in range(start + own):
            page, slot = place[n][position]
            cache[:, page, :, slot] = sequence[:, :, position]
    query = torch.randn(2, heads, width, size)
    new = [torch.stack([sequence[i, :, -width:] for sequence in sequences]) for i in range(2)]
    first = [start + own for start, own in zip(starts, owns, strict=True)]
    chunk = Chunk(*(torch.tensor(each) for each in ([3, 1], first, lengths)), max(owns), width)
    chunk = replace(chunk, start_N=torch.tensor(starts), pages_NM=torch.tensor(pages))
    extra = AttentionModifiers(local, **modifiers)
    monkeypatch.setattr(cached_attention, "SCORE_BYTES", scores)
    monkeypatch.setattr(cached_attention, "PAGE", 4)
    out = attend_to_chunk(query, *new, tuple(cache), chunk, scale, extra)
    for n, sequence in enumerate(sequences):
        for i in range(lengths[n]):
            position = first[n] + i
            seen = range(position + 1)
            if local is not None:
                start = position // 3 * 3 if local.chunked else max(0, position - 3)
                seen = range(start, position + 1)
            keys, values = sequence[:, :, list(seen)].repeat_interleave(2, 1)
            scores = (keys @ query[n, :, i, :, None])[..., 0] * scale
            if "softcap" in modifiers:
                scores = 2 * torch.tanh(scores / 2)
            expected = (scores.softmax(-1)[..., None] * values).sum(1)
            torch.testing.assert_close(out[n, :, i], expected, atol=1e-5, rtol=0)
            page, slot = place[n][position]
            torch.testing.assert_close(cache[0, page, :, slot], sequence[0, :, position])


def test_layers_of_a_pass_share_a_mask_only_if_they_see_the_same() -> None:
    """Local and global layers, capped and plain ones, with one chunk: each as with a chunk of its own."""
    torch.manual_seed(0)
    cache = tuple(torch.randn(2, 4, 2, 9, 8))
    query, new = torch.randn(2, 4, 3, 8), tuple(torch.randn(2, 2, 2, 3, 8))
    chunk = Chunk(torch.tensor([3, 1]), torch.tensor([5, 2]), torch.tensor([3, 1]), 5, 3)
    kinds = [AttentionModifiers(local, softcap) for softcap in (None, 2.0) for local in (LocalAttention(2), None)]
    shared, own = (
        [attend_to_chunk(query, *new, cache, of(), 0.3, kind) for kind in kinds]
        for of in (lambda: chunk, lambda: replace(chunk))
    )
    for one, other in zip(shared, own, strict=True):
        assert torch.equal(one, other)
    assert not torch.allclose(shared[0], shared[1])
    assert not torch.allclose(shared[2], shared[3])


def _conversations(policy: Policy) -> int:
    """Sample two conversations with replies of 10 and 20 tokens; returns the decode steps they took."""
    engine, steps = sampler_of(policy), []
    assert isinstance(engine, Engine)
    decode = engine.decode
    engine.decode = lambda *args: (steps.append(1), decode(*args))[1]  # type: ignore[method-assign, assignment]
    script = Scripted([[10], [20]], 40)
    done = sample(policy, [[1, 2, 3], [4]], max_new_tokens=4, max_tokens=40, sampling=Sampling(), replies=script)
    engine.decode = decode  # type: ignore[method-assign]
    check(policy, [[1, 2, 3], [4]], done, script, Sampling(), tolerance=1e-5)
    return len(steps)


def test_a_model_that_chunks_are_wrong_for_reads_one_token_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy("llama")
    policy.eos_ids = frozenset()
    sampler_of(policy).reads_chunks = True  # type: ignore[attr-defined]
    assert _conversations(policy) == 3 + 4
    right = cached_attention.attend_to_chunk
    monkeypatch.setattr(cached_attention, "attend_to_chunk", lambda *args: -50 * right(*args))
    sampler_of(policy).reads_chunks = None  # type: ignore[attr-defined]
    assert _conversations(policy) > 20
    assert sampler_of(policy).reads_chunks is False  # type: ignore[attr-defined]
    written = sample(policy, [[*range(1, 8)], [8]], max_new_tokens=agreement.NEW_TOKENS).ids_BT.tolist()
    policy.eos_ids = frozenset({written[0][1]})  # one of the two turns that are tried ends before the other
    assert written[0][1] not in written[1]
    assert not agreement.reads_chunks(policy, sampler_of(policy))  # type: ignore[arg-type]
