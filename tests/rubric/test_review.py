"""Which items are weak: figures worked out by hand, and what is said of each."""

from statistics import correlation as stdlib_correlation
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.errors import UserError
from vigneron.rubric.review import ItemReview, ItemScore, Label, correlation, item_scores, labels_of, review, unmatched


def scores(
    item: str, *found: float | None, confidence: float = 0.9, version: str = "1", category: str = "c"
) -> list[ItemScore]:
    return [
        ItemScore(category, item, version, f"p{n}", f"a{n}", score, 0.0 if score is None else confidence)
        for n, score in enumerate(found)
    ]


def labels(item: str, *found: float, category: str | None = None) -> list[Label]:
    return [Label(category, item, f"p{n}", f"a{n}", score) for n, score in enumerate(found)]


def only(found: list[ItemReview], item: str) -> ItemReview:
    return next(one for one in found if one.item == item)


def test_figures_by_hand() -> None:
    seen = scores("good", 0.0, 1.0, 0.5, None, confidence=0.8)
    (one,) = review(seen, labels("good", 0.25, 0.75, 0.5, 1.0))
    assert (one.scored, one.failed, one.labelled) == (3, 1, 3)
    assert one.score == pytest.approx(0.5)
    assert one.spread == pytest.approx((0.5 / 3) ** 0.5)
    assert one.confidence == pytest.approx(0.8)
    assert one.disagreement == pytest.approx((0.25 + 0.25 + 0) / 3)
    assert one.correlation is None, "three pairs say little"
    assert one.weak == ("fails often (1 of 4)",)


def test_a_missing_score_counts_in_no_mean() -> None:
    (one,) = review(scores("x", None, 1.0))
    assert (one.score, one.confidence) == (1.0, 0.9)
    (none,) = review(scores("x", None, None))
    assert (none.score, none.spread, none.confidence, none.weak) == (None, None, None, ("was never scored",))


def test_the_weak_ones_first_and_why() -> None:
    varied = [0.1, 0.9, 0.4, 0.7, 0.2, 0.8, 0.3, 0.6]
    against = [1 - score for score in varied]
    seen = [
        *scores("fine", *varied),
        *scores("unsure", *varied, confidence=0.3),
        *scores("constant", *[1.0] * 8),
        *scores("failing", *varied, None),
        *scores("contrary", *varied),
    ]
    found = review(seen, [*labels("fine", *varied), *labels("contrary", *against)])
    assert [one.item for one in found] == ["contrary", "unsure", "constant", "failing", "fine"]
    assert only(found, "contrary").correlation == pytest.approx(-1)
    assert only(found, "contrary").weak == (
        "disagrees with people (by 0.50 on average)",
        "correlates weakly with people's scores",
    )
    assert only(found, "unsure").weak == ("low confidence",)
    assert only(found, "constant").weak == ("never varies (always 1.00)",)
    assert only(found, "failing").weak == ("fails often (1 of 9)",)
    assert only(found, "fine").weak == ()
    assert only(found, "fine").correlation == pytest.approx(1)


def test_versions_and_categories_stand_apart() -> None:
    seen = [
        *scores("x", 0.0, version="1@a"),
        *scores("x", 1.0, version="1.1@b"),
        *scores("x", 0.5, version="1@a", category="d"),
    ]
    found = {(one.category, one.version): one.score for one in review(seen)}
    assert found == {("c", "1@a"): 0.0, ("c", "1.1@b"): 1.0, ("d", "1@a"): 0.5}


def test_whose_label_it_is() -> None:
    seen = [*scores("x", 0.0), *scores("x", 1.0, category="d")]
    by_both = {one.category: one.disagreement for one in review(seen, labels("x", 1.0))}
    assert by_both == {"c": 1.0, "d": 0.0}
    by_one = {one.category: one.disagreement for one in review(seen, labels("x", 1.0, category="d"))}
    assert by_one == {"c": None, "d": 0.0}
    two_people = review(scores("x", 0.0), [*labels("x", 0.2), *labels("x", 0.6)])
    assert two_people[0].disagreement == pytest.approx(0.4)
    turn = [ItemScore("c", "x", "1", "user: hello", "a", 0.5, 1.0)]
    for prompt in ("hello", "user: hello"):
        assert review(turn, [Label(None, "x", prompt, "a", 0.5)])[0].labelled == 1
    assert unmatched(turn, [Label(None, "x", "hello", "a", 0.5), Label(None, "y", "hello", "a", 0.5)]) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=20))
def test_correlation_is_pearsons(pairs: list[tuple[float, float]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found = correlation(one, other)
    if found is not None:
        assert found == pytest.approx(stdlib_correlation(one, other), abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.floats(0, 1), st.floats(0, 1)), max_size=20), st.randoms()
)
def test_order_does_not_matter(given: list[tuple[str, float | None, float]], random: Any) -> None:
    seen = [ItemScore("c", item, "1", f"p{n}", "a", score, sure) for n, (item, score, sure) in enumerate(given)]
    mixed = list(seen)
    random.shuffle(mixed)
    ours, theirs = review(seen), review(mixed)
    assert {(one.item, one.scored, one.failed) for one in ours} == {
        (one.item, one.scored, one.failed) for one in theirs
    }
    assert sum(one.scored + one.failed for one in ours) == len(given)


def test_what_is_kept_with_a_sample() -> None:
    kept = {"version": "1@a", "category": "c", "items": {"x": {"score": 0.0}, "y": {"score": None, "why": "boom"}}}
    assert item_scores("p", "a", kept) == [
        ItemScore("c", "x", "1@a", "p", "a", 0.0, 0.0),
        ItemScore("c", "y", "1@a", "p", "a", None, 0.0),
    ]
    assert item_scores("p", "a", None) == []


ROW = {"prompt": "p", "completion": "", "item": "x", "score": "0.5"}


def test_labels_of_rows() -> None:
    assert labels_of([ROW], "l.csv") == [Label(None, "x", "p", "", 0.5)]
    assert labels_of([{**ROW, "category": "c", "score": 1}], "l.csv") == [Label("c", "x", "p", "", 1.0)]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"prompt": "p", "completions": "a"}, "row 1 has no 'completion' (did you mean 'completions'?)"),
        ({**ROW, "item": ""}, "row 1 has no 'item'"),
        ({**ROW, "score": "7"}, "row 1: score is '7', not a number from 0 to 1"),
        ({**ROW, "score": "good"}, "row 1: score is 'good', not a number from 0 to 1"),
        ({**ROW, "score": "nan"}, "row 1: score is 'nan', not a number from 0 to 1"),
        ({**ROW, "score": True}, "row 1: score is True, not a number from 0 to 1"),
        ({**ROW, "prompt": 5}, "row 1: prompt is neither a string nor messages"),
    ],
)
def test_labels_that_cannot_be_read(row: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        labels_of([row], "l.csv")
    assert str(caught.value) == f"labels: l.csv, {line}"
    with pytest.raises(UserError, match="has no rows"):
        labels_of([], "l.csv")
