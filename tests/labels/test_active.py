"""Which solutions are labelled first."""

from hypothesis import given
from hypothesis import strategies as st

from vigneron.labels.active import most_convincing_first


def test_four_of_five_are_the_most_convincing_wrong_answers() -> None:
    scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    right = [True, False, True, False, False, False, None, False]
    # Wrong, by score: 1 3 4 5 7. The fifth place is the best that remains, whether right or wrong.
    assert most_convincing_first(scores, right) == [1, 3, 4, 5, 0, 7, 2, 6]
    assert most_convincing_first(scores, right, wrong_share=0.0) == list(range(8))


def test_without_a_wrong_answer_the_highest_come_first() -> None:
    assert most_convincing_first([0.1, 0.3, 0.3], [True, None, True]) == [1, 2, 0]
    assert most_convincing_first([], []) == []


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([True, False, None])), max_size=30))
def test_every_solution_comes_once_and_wrong_ones_are_not_outnumbered(
    solutions: list[tuple[float, bool | None]],
) -> None:
    scores, right = [score for score, _ in solutions], [verdict for _, verdict in solutions]
    order = most_convincing_first(scores, right)
    assert sorted(order) == list(range(len(solutions)))
    for count in range(1, len(order) + 1):
        wrong = sum(right[solution] is False for solution in order[:count])
        assert wrong >= min(int(0.8 * count), sum(verdict is False for verdict in right))
