"""Shapes that repeat: few numbers, never too small, never much too large."""

from hypothesis import given
from hypothesis import strategies as st

from vigneron.policy.cuda_graphs import round_to_bucket


@given(st.integers(1, 10**6), st.sampled_from([4, 8]))
def test_a_number_is_rounded_up_a_little(count: int, per_doubling: int) -> None:
    rounded = round_to_bucket(count, per_doubling=per_doubling)
    assert count <= rounded <= count * (1 + 1 / per_doubling) + 1
    assert round_to_bucket(rounded, per_doubling=per_doubling) == rounded


def test_there_are_few_of_them() -> None:
    assert len({round_to_bucket(count) for count in range(1, 1025)}) == 4 + 4 * 8
    widths = {round_to_bucket(count, per_doubling=8, smallest_step=16) for count in range(1, 2049)}
    assert widths == {*range(16, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1152, 2049, 128)}
