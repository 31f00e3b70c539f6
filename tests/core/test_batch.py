"""Batch: rows, masks from spans, and parts that come together again as the whole."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.policy.microbatches import bundles, length_buckets
from vigneron.policy.rank_batches import map_microbatches


def test_mask_comes_from_spans_not_from_ids() -> None:
    batch = make_batch([2, 5, 1], [3, 1, 0], completion_BT=torch.zeros(3, 3, dtype=torch.int64))
    assert len(batch) == 3
    assert batch.samples.lengths_B.tolist() == [3, 1, 0]
    assert batch.samples.mask_BT.int().tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


def test_mask_of_several_spans_leaves_out_what_stands_between_them() -> None:
    batch = make_batch([3, 2, 1], [6, 3, 6], spans=(((3, 5), (8, 9)), ((2, 5),), ((1, 2), (3, 4), (6, 7))))
    assert batch.samples.lengths_B.tolist() == [6, 3, 6]
    assert batch.samples.mask_BT.int().tolist() == [[1, 1, 0, 0, 0, 1], [1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 0, 1]]


def test_a_sample_without_a_reward_is_not_trained_on() -> None:
    batch = make_batch([1, 1, 1], [2, 2, 1])
    assert torch.equal(batch.trained_BT, batch.samples.mask_BT)
    rewarded = batch.with_signals(rewards_B=torch.tensor([0.0, math.nan, 1.0]))
    assert rewarded.trained_BT.int().tolist() == [[1, 1], [0, 0], [1, 0]]
    assert torch.equal(rewarded.samples.mask_BT, batch.samples.mask_BT)


def test_rows_picks_everything_of_a_sample_and_cuts_to_the_longest() -> None:
    batch = make_batch(
        [2, 5, 1, 3],
        [4, 1, 2, 3],
        # A user's column may have any name, also one of the batch's own.
        columns={"answer": ("a", "b", "c", "d"), "metrics": (1, 2, 3, 4)},
        extras={"part": (10, 11, 12, 13)},
        metrics={"seen": 0.5},
        prompt_hidden_BH=torch.arange(20.0).reshape(4, 5),
        rewards_B=torch.tensor([0.0, 0.1, 0.2, 0.3]),
        reference_hidden_BTH=torch.arange(32.0).reshape(4, 4, 2),
    )
    part = batch.rows([2, 1])
    assert part.samples.prompt_ids == ((7,), (7,) * 5)
    assert part.samples.completion_BT.tolist() == [[200, 201], [100, 999]]
    assert part.samples.behaviour_BT.tolist() == [[-200, -201], [-100, -999]]
    assert part.samples.spans == (((1, 3),), ((5, 6),))
    assert part.samples.truncated_B.tolist() == [True, False]
    assert part.samples.group_B.tolist() == [1, 0]
    assert part.samples.sample_B.tolist() == [42, 41]
    assert part.samples.prompts == ("prompt 2", "prompt 1")
    assert part.samples.completions == ("completion 2", "completion 1")
    assert part.samples.columns == {"answer": ("c", "b"), "metrics": (3, 2)}
    assert part.samples.extras == {"part": (12, 11)}
    assert part.signals.metrics == {"seen": 0.5}
    assert torch.equal(part.samples.prompt_hidden_BH, batch.samples.prompt_hidden_BH[[2, 1]])
    assert torch.equal(part.signals.rewards_B, batch.signals.rewards_B[[2, 1]])
    assert torch.equal(part.signals.reference_hidden_BTH, batch.signals.reference_hidden_BTH[[2, 1], :2])
    assert part.signals.values_B is None
    assert part.signals.advantages_BT is None
    assert part.samples.mask_BT.int().tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize(
    ("lengths", "budget", "wanted"),
    [
        ([3, 1, 2, 3], 6, [[0, 3], [2, 1]]),  # 3 · 2; 2 · 2
        ([3, 1, 2, 3], 9, [[0, 3, 2], [1]]),  # padded to 3: 3 · 3, a fourth would be 12
        ([9, 2, 2], 4, [[0], [1, 2]]),  # longer than the budget: alone
        ([5, 5], 1, [[0], [1]]),
        ([], 4, []),
    ],
)
def test_length_buckets_by_hand(lengths: list[int], budget: int, wanted: list[list[int]]) -> None:
    assert length_buckets(lengths, budget) == wanted


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(0, 30), max_size=12), budget=st.integers(1, 100))
def test_length_buckets_hold_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    parts = length_buckets(lengths, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    longest = [max(lengths[row] for row in part) for part in parts]
    assert longest == sorted(longest, reverse=True)
    assert all(len(part) == 1 or most * len(part) <= budget for part, most in zip(parts, longest, strict=True))
    # No part is closed while its next row would still fit.
    assert all(most * (len(part) + 1) > budget for part, most in zip(parts[:-1], longest[:-1], strict=True))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=7), budget=st.integers(1, 60)
)
@example(sizes=[(4, 4), (1, 1), (4, 1), (4, 1)], budget=16)  # one prompt, in two places
def test_map_parts_equals_computing_on_the_whole(sizes: list[tuple[int, int]], budget: int) -> None:
    batch = make_batch([p for p, _ in sizes], [c for _, c in sizes])
    seen: list[int] = []

    def compute(part: Batch) -> dict[str, Tensor]:
        kept = torch.where(part.samples.mask_BT, part.samples.completion_BT.double(), 0.0)
        if part is not batch:
            widths = [
                len(part.samples.prompt_ids[row[0]]) + sum(part.samples.lengths_B[i] for i in row)
                for row in bundles(part)
            ]
            assert len(part) == 1 or sum(widths) <= budget
            seen.extend(part.samples.sample_B.tolist())
        return {
            "running_BT": torch.where(part.samples.mask_BT, kept.cumsum(1), 0.0),
            "pair_BTH": torch.stack([kept, -kept], -1),
            "total_B": kept.sum(1),
            "double_BH": torch.stack([kept.sum(1), 2 * kept.sum(1)], -1),
        }

    got, wanted = map_microbatches(batch, budget, compute), compute(batch)
    assert sorted(seen) == batch.samples.sample_B.tolist()
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
