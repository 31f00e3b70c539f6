"""Samples of different prompts in one row: the gradient is that of each in a row of its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_batch import batch_of
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy.logprobs import score
from vigneron.policy.microbatches import microbatches, packed_rows
from vigneron.policy.model import Policy
from vigneron.policy.packing import lay_out

PAIRS = [([3, 4, 5], [6, 7, 8, 9, 0]), ([3], [10, 0]), ([11, 12], [13, 14, 0]), ([15, 16, 17, 18, 19, 20], [21])]


def gradient(policy: Policy, batch: Batch, budget: int = 1000) -> list[torch.Tensor]:
    """Of the sum of −log π over everything that is learned, each token weighed by its id so that none cancels."""
    policy.model.zero_grad()
    for part in microbatches(batch, budget):
        logprobs_BT = score(policy, part, Sampling()).logprobs_BT
        (-logprobs_BT * (1 + part.samples.completion_BT))[part.samples.mask_BT].sum().backward()
    return [p.grad.clone() for _, p in policy.trainable()]


def differ(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


# Llama and Qwen have norms that are float32 in any model.
@pytest.mark.parametrize(("kind", "rounding"), [("gpt2", 1e-12), ("llama", 1e-6), ("qwen", 1e-6)])
def test_packed_and_unpacked_gradients_are_equal_and_without_the_mask_they_are_not(
    kind: str, rounding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy(kind, dtype=torch.float64)
    batch = batch_of(PAIRS)
    apart, packed = gradient(policy, batch), gradient(policy, batch.with_packing(pack=True))
    size = max(float(g.abs().max()) for g in apart)
    assert differ(apart, packed) < rounding * size
    hidden = Policy.hidden
    monkeypatch.setattr(Policy, "hidden", lambda self, ids, positions, allowed=None: hidden(self, ids, positions))
    assert differ(apart, gradient(policy, batch)) < rounding * size
    assert differ(apart, gradient(policy, batch.with_packing(pack=True))) > 1e-3 * size


def test_rows_by_hand() -> None:
    """Lengths 8, 3, 5 and 7: rows of 8 hold the first, then the last, then the other two together."""
    (part,) = microbatches(batch_of(PAIRS).with_packing(pack=True), 1000)
    assert part.packing.row_tokens == 8
    assert packed_rows(part) == [[[0]], [[3]], [[2], [1]]]
    layout = lay_out(part, 0, torch.device("cpu"))
    assert layout.ids_RS[2].tolist() == [11, 12, 13, 14, 3, 10, 3, 3]  # padding is a token of a prompt
    assert layout.positions_RS[2].tolist() == [0, 1, 2, 3, 0, 1, 0, 0]
    assert layout.allowed_R1SS is not None
    assert layout.allowed_R1SS[2, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]


token = st.integers(1, 250)
pairs = st.lists(
    st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(token, min_size=1, max_size=9)),
    min_size=1,
    max_size=9,
)


@given(pairs=pairs, budget=st.integers(1, 60), shareable=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_one_row_and_parts_fall_into_the_rows_they_were_made_of(
    pairs: list[tuple[list[int], list[int]]], budget: int, shareable: bool
) -> None:
    """Prompts repeat among these, so that bundles of several completions are packed too."""
    batch = batch_of(pairs).with_packing(pack=True, share_prompts=shareable)
    seen: list[int] = []
    for part in microbatches(batch, budget):
        rows = packed_rows(part)
        widths = [
            sum(len(part.samples.prompt_ids[b[0]]) + sum(part.samples.lengths_B[b].tolist()) for b in row)
            for row in rows
        ]
        assert max(widths) <= max(part.packing.row_tokens, *(len(p) + len(c) for p, c in pairs))
        assert len(part) == 1 or len(rows) == 1 or max(widths) * len(rows) <= budget
        assert sorted(i for row in rows for bundle in row for i in bundle) == list(range(len(part)))
        seen += part.samples.sample_B.tolist()
    assert sorted(seen) == list(range(len(pairs)))


@given(pairs=pairs, budget=st.integers(8, 60))
@settings(max_examples=15, deadline=None)
def test_any_batch_in_any_parts_has_the_unpacked_gradient(
    pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    policy = tiny_policy("gpt2", dtype=torch.float64)
    apart = gradient(policy, batch_of(pairs).with_packing(share_prompts=False))
    packed = gradient(policy, batch_of(pairs).with_packing(pack=True), budget)
    assert differ(apart, packed) < 1e-11 * max(float(g.abs().max()) for g in apart)
