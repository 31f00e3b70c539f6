"""Agreement on numbers that were worked out by hand."""

import pytest

from vigneron.labels.agreement import agreement_of


def ratings(*rows: str) -> list[dict[str, str]]:
    """A row for each item: the choice of the first person, of the second …; `.` for none."""
    return [{f"person {n}": choice for n, choice in enumerate(row) if choice != "."} for row in rows]


def test_cohens_kappa_of_two() -> None:
    """50 items, of which both call 20 a and 15 b: 35 of 50 alike, 0.7. The first says a in half of them, the second in
    0.6: by chance 0.5 × 0.6 + 0.5 × 0.4 = 0.5. (0.7 − 0.5) / 0.5 = 0.4."""
    found = agreement_of(ratings(*["aa"] * 20, *["ab"] * 5, *["ba"] * 10, *["bb"] * 15))
    assert (found.items, found.measure) == (50, "Cohen's kappa")
    assert found.equal == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)
    assert found.line() == "person 0 and person 1 agree on 70% of 50 items; Cohen's kappa 0.40"


def test_fleiss_kappa_of_three() -> None:
    """Four items: aaa, aab, abb, bbb. Pairs alike: 1, 1/3, 1/3, 1, on average 2/3. Half of the ratings are a: by chance
    1/2. (2/3 − 1/2) / (1/2) = 1/3."""
    found = agreement_of(ratings("aaa", "aab", "abb", "bbb"))
    assert (found.items, found.measure, len(found.labellers)) == (4, "Fleiss' kappa", 3)
    assert found.equal == pytest.approx(2 / 3)
    assert found.kappa == pytest.approx(1 / 3)


def test_fleiss_kappa_of_ties_and_of_people_who_did_not_judge_everything() -> None:
    """aa., .at, tt., and one that only one person judged, which does not count. Alike: 1, 0, 1, on average 2/3. Of six
    ratings three are a: 1/2. Again 1/3."""
    found = agreement_of(ratings("aa.", ".at", "tt.", "..a"))
    assert found.items == 3
    assert found.equal == pytest.approx(2 / 3)
    assert found.kappa == pytest.approx(1 / 3)


def test_worse_than_chance_and_no_chance() -> None:
    assert agreement_of(ratings("ab", "ba")).kappa == pytest.approx(-1.0)
    always = agreement_of(ratings("aa", "aa"))
    assert (always.equal, always.kappa) == (1.0, None)
    assert "undefined" in always.line()
    assert agreement_of(ratings("a.", ".b")).line() == "no item has labels of two people yet"
