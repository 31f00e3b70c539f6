"""Samples of different prompts in one row: the gradient is that of each in a row of its own, whether they are kept
apart by unpacking them for attention or by a mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer, tiny_policy
from support.zoo import zoo_model
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy.attention import Unpacked
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.microbatches import bundle_width, bundles, microbatches, packed_rows, sample_width
from vigneron.policy.model import Policy
from vigneron.policy.packing import can_share_prompts, lay_out

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
@pytest.mark.parametrize("own_attention", [True, False])
def test_packed_and_unpacked_gradients_are_equal_and_only_if_samples_are_kept_apart(
    kind: str, rounding: float, own_attention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy(kind, dtype=torch.float64)
    policy.own_attention = own_attention
    batch = batch_of([*PAIRS, ([3, 4, 5], [9, 8]), ([3, 4, 5], [7])]).with_packing(masked=not own_attention, pack=True)
    apart = [gradient(policy, batch.rows([i])) for i in range(len(batch))]
    total = [torch.stack(parts).sum(0) for parts in zip(*apart, strict=True)]
    packed = gradient(policy, batch)
    size = max(float(g.abs().max()) for g in total)
    assert differ(total, packed) < rounding * size
    hidden = Policy.hidden
    monkeypatch.setattr(Policy, "hidden", lambda self, ids, positions, apart=None: hidden(self, ids, positions))
    assert differ(total, gradient(policy, batch)) > 1e-3 * size


def test_one_row_by_hand() -> None:
    """The first two samples share a prompt of two tokens."""
    policy = tiny_policy()
    batch = batch_of([([3, 4], [6, 7, 0]), ([3, 4], [8, 0]), ([5], [9, 9, 0])])
    (part,) = microbatches(batch, 1000)
    layout = lay_out(part, policy)
    assert layout.ids_RS.tolist() == [[3, 4, 6, 7, 8, 5, 9, 9]]  # the last tokens are not fed
    assert layout.positions_RS.tolist() == [[0, 1, 2, 3, 2, 0, 1, 2]]
    assert layout.predicts_N.tolist() == [1, 2, 3, 1, 4, 5, 6, 7]
    assert isinstance(layout.apart, Unpacked)
    assert layout.apart.token_BW.tolist() == [[0, 1, 2, 3], [0, 1, 4, 0], [5, 6, 7, 0]]  # padding is any token
    assert layout.apart.place_N.tolist() == [0, 1, 2, 3, 6, 8, 9, 10]
    assert layout.apart.prompt_M.tolist() == [0, 1]
    assert layout.apart.places_MG.tolist() == [[0, 4], [1, 5]]


def test_sizes_for_graphs_have_a_spare_row_for_padding() -> None:
    policy = tiny_policy()
    policy.graphed = True
    batch = batch_of([([3, 4], [6, 7, 0]), ([3, 4], [8, 0]), ([5], [9, 9, 0])]).with_packing(per_row=2)
    layout = lay_out(batch, policy)
    assert layout.ids_RS.shape == (1, 16)
    assert isinstance(layout.apart, Unpacked)
    assert layout.apart.token_BW.shape == (4, 16)
    assert layout.apart.place_N[8:].tolist() == [3 * 16] * 8
    assert set(layout.apart.token_BW[3].tolist()) == {15}
    policy.graphed = False
    plain = lay_out(batch, policy)
    states = [policy.trunk(each.ids_RS, each.positions_RS, each.apart)[0, each.predicts_N] for each in (layout, plain)]
    torch.testing.assert_close(states[0], states[1])


def test_rows_with_a_mask_by_hand() -> None:
    """Lengths 8, 3, 5 and 7: rows of 8 hold the first, then the last, then the other two together."""
    policy = tiny_policy()
    policy.own_attention = False
    (part,) = microbatches(batch_of(PAIRS).with_packing(masked=True, pack=True), 1000)
    assert part.packing.row_tokens == 8
    assert packed_rows(part) == [[[0]], [[3]], [[2], [1]]]
    layout = lay_out(part, policy)
    assert layout.ids_RS[2].tolist() == [11, 12, 13, 14, 3, 10, 3, 3]  # padding is a token of a prompt
    assert layout.positions_RS[2].tolist() == [0, 1, 2, 3, 0, 1, 0, 0]
    assert isinstance(layout.apart, torch.Tensor)
    assert layout.apart[2, 0].int().tolist() == [
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
    batch = batch_of(pairs).with_packing(masked=True, pack=True, share_prompts=shareable)
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


long_prompts = st.lists(
    st.tuples(st.sampled_from([[1] * 30, [2] * 12, [3]]), st.lists(token, min_size=1, max_size=9)),
    min_size=1,
    max_size=24,
)


@given(pairs=long_prompts, budget=st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_unpacked_parts_have_every_sample_once_and_keep_to_the_budget(
    pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    seen: list[int] = []
    for part in microbatches(batch_of(pairs), budget):
        tokens = sum(bundle_width(part, bundle) for bundle in bundles(part))
        widest = max(sample_width(part, i) for i in range(len(part)))
        assert len(part) == 1 or tokens + len(part) * widest / 8 <= 9 / 8 * budget
        seen += part.samples.sample_B.tolist()
    assert sorted(seen) == list(range(len(pairs)))


def test_a_group_is_split_where_that_fills_the_budget() -> None:
    """Groups of 8 behind a prompt of 128 have 2,176 tokens: one fits into 4,096, but three halves of them do too."""
    batch = batch_of([([g + 1] * 128, [7] * 256) for g in range(4) for _ in range(8)])
    assert [len(part) for part in microbatches(batch, 4096)] == [12, 12, 8]
    assert [len(part) for part in microbatches(batch, 16384)] == [32]


@pytest.mark.slow
@given(pairs=pairs, budget=st.integers(8, 60))
@settings(max_examples=15, deadline=None)
def test_any_batch_in_any_parts_has_the_unpacked_gradient(
    pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    policy = tiny_policy("gpt2", dtype=torch.float64)
    apart = gradient(policy, batch_of(pairs).with_packing(share_prompts=False))
    packed = gradient(policy, batch_of(pairs).with_packing(pack=True), budget)
    assert differ(apart, packed) < 1e-11 * max(float(g.abs().max()) for g in apart)


def test_copies_of_a_model_that_mixes_packed_samples_do_not_pack_them() -> None:
    policy = make_policy(zoo_model("LFM2"), byte_tokenizer(), device=torch.device("cpu"))
    policy.shares_prompts = can_share_prompts(policy)
    assert not policy.shares_prompts
    batch = batch_of(PAIRS).with_packing(share_prompts=False)
    with torch.no_grad():
        expected, *copies = (
            score(each, batch, Sampling()).logprobs_BT
            for each in (policy, policy.frozen_copy(), policy.trainable_copy())
        )
    for logprobs_BT in copies:
        assert torch.equal(logprobs_BT, expected)
