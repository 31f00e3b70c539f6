"""The learning rate's factor, update by update."""

import pytest

from vigneron.core.schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("shape", "after"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, 0.8535533906, 0.5, 0.1464466094]),  # ½ (1 + cos 0), ½ (1 + cos π/4), …
    ],
)
def test_factor_rises_over_the_warmup_then_follows_its_shape(shape: str, after: list[float]) -> None:
    rise = [1 / 4, 2 / 4, 3 / 4]
    got = [learning_rate_factor(update, 7, shape=shape, warmup=3) for update in range(7)]
    assert got == pytest.approx(rise + after)


def test_factor_without_warmup_starts_at_the_peak_and_is_constant_by_default() -> None:
    assert [learning_rate_factor(update, 3) for update in range(3)] == [1, 1, 1]
    assert [learning_rate_factor(update, 2, shape="linear") for update in range(3)] == [1, 0.5, 0]


def test_a_warmup_as_long_as_the_run_divides_by_nothing() -> None:
    assert [learning_rate_factor(update, 2, shape="linear", warmup=2) for update in range(3)] == [1 / 3, 2 / 3, 1]
