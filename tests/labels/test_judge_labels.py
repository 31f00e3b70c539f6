"""Preference labels by a judge in both orders, with judges whose every reply is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import vigneron, write_jsonl
from support.house_judges import PRINCIPLES, option, read, rule
from vigneron.labels.by_judge import label_pairs, pair_key, pair_row
from vigneron.labels.items import Comparison
from vigneron.labels.revisions import drawn
from vigneron.rubric.comparing import Compared, both_orders, compare

# ------------------------------------------------------------------------------------------------ both orders


def test_both_orders_are_averaged_by_hand(house: Path) -> None:
    """`e` against `ee`: 0.6 − 0.2 = 0.4 as the first text, 0.6 + 0.2 = 0.8 for the other: (0.4 + 1 − 0.8) / 2 = 0.3."""
    pairs = [Compared("q", "e", "ee"), Compared("q", "ee", "e"), Compared("q", "one", "two"), Compared("q", "a", "b")]
    found = [each.probability for each in compare(rule("biased", house), pairs)]
    assert found == pytest.approx([0.3, 0.7, 0.7, 0.5])


def test_a_judge_that_always_prefers_the_first_text_has_no_say(house: Path) -> None:
    found = compare(rule("always_first", house), [Compared("q", "a", "b"), Compared("q", "c", "d")])
    assert [each.probability for each in found] == [0.5, 0.5]


def test_a_label_that_is_missing_in_one_order_is_missing(house: Path) -> None:
    lost, kept = compare(rule("silent_on_x", house), [Compared("q", "a", "x"), Compared("q", "e", "a")])
    assert lost.probability is None
    assert lost.why is not None
    assert "JSON" in lost.why
    assert kept.probability == pytest.approx(0.7)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_mean_does_not_depend_on_the_order(one: float, other: float) -> None:
    assert both_orders(one, other) == pytest.approx(1 - both_orders(other, one))
    assert 0 <= both_orders(one, other) <= 1


@given(st.floats(0, 1))
def test_the_better_text_is_chosen_and_its_label_at_least_one_half(probability: float) -> None:
    row = pair_row(Comparison("q", ("a", "b")), probability, "judge")
    assert row["preferred"] >= 0.5
    assert row["preferred"] == pytest.approx(probability if row["chosen"] == "a" else 1 - probability)
    assert {row["chosen"], row["rejected"]} == {"a", "b"}


# ------------------------------------------------------------------------------------------------ labels


def comparisons(*pairs: tuple[str, str]) -> list[Comparison]:
    return [Comparison(f"q{number}", pair) for number, pair in enumerate(pairs)]


def test_labels_keep_ties_soft_and_name_the_principle(house: Path) -> None:
    items = comparisons(("a", "e"), ("b", "c"), ("x", "e"))
    found = label_pairs(rule("silent_on_x", house), items, principles=PRINCIPLES, seed=3)
    assert [(row["chosen"], row["rejected"], row["preferred"]) for row in found.rows] == [
        ("e", "a", 0.7),
        ("b", "c", 0.5),
    ]
    assert [row["principle"] for row in found.rows] == [drawn(PRINCIPLES, 3, item.id).name for item in items[:2]]
    assert (found.ties, found.missing, found.count("judge")) == (1, 1, 2)


def test_people_win_and_their_pairs_cost_nothing(house: Path) -> None:
    people = [{"prompt": "q0", "chosen": "a", "rejected": "e"}, {"prompt": "other", "chosen": "c", "rejected": "d"}]
    judge = rule("biased", house)
    found = label_pairs(judge, comparisons(("e", "a"), ("e", "b")), people=people)
    assert judge.calls == 2, "only the second pair, in both orders"
    assert [(row["chosen"], row["preferred"], row["labelled_by"]) for row in found.rows] == [
        ("a", 1.0, "people"),
        ("c", 1.0, "people"),
        ("e", 0.7, "judge"),
    ]
    assert pair_key("q0", ("e", "a")) == pair_key("q0", ("a", "e "))


def test_a_checker_decides_first_and_the_judge_among_right_answers(house: Path) -> None:
    """HRLAIF. Right is what ends in 1; unknown is what ends in ?."""

    def check(prompt: Any, completion: Any) -> bool | None:
        return None if completion.endswith("?") else completion.endswith("1")

    judge = rule("biased", house)
    items = comparisons(("ee0", "a1"), ("b1", "e0"), ("a0", "b0"), ("a1", "e1"), ("e?", "a1"))
    found = label_pairs(judge, items, check=check)
    assert [(row["chosen"], row["preferred"], row["labelled_by"]) for row in found.rows] == [
        ("a1", 1.0, "checker"),
        ("b1", 1.0, "checker"),
        ("e1", 0.7, "judge"),
        ("e?", 0.7, "judge"),
    ]
    assert (found.both_wrong, judge.calls) == (1, 4)


def test_the_command_labels_a_file_and_the_pairs_train(house: Path) -> None:
    rows = [
        {"prompt": "p", "completion_a": "e1", "completion_b": "a1", "answer": "1"},
        {"prompt": "q", "completion_a": "b", "completion_b": "ee", "answer": "ee"},
        {"prompt": "r", "completion_a": "b", "completion_b": "c", "answer": "d"},
    ]
    write_jsonl(house / "file.jsonl", map(json.dumps, rows))
    write_jsonl(house / "people.jsonl", [json.dumps({"prompt": "p", "chosen": "a1", "rejected": "e1"})])
    judged = vigneron(
        "label", "file.jsonl", "--judge", option("biased"), "--people", "people.jsonl", "--checker", "equality",
        "--out", "pairs.jsonl",
    )  # fmt: skip
    assert judged.code == 0, judged.err
    assert [(row["chosen"], row["labelled_by"]) for row in read(house / "pairs.jsonl")] == [
        ("a1", "people"),
        ("ee", "checker"),
    ]
    assert "note: 1 pairs of two wrong answers are left out" in judged.out
    assert "wrote pairs.jsonl: 2 pairs (1 by people, 1 by checker), 0 ties" in judged.out
    checked = vigneron("validate", "dpo.yaml") if write_dpo(house) else None
    assert checked is not None
    assert checked.code == 0, checked.err


def write_dpo(folder: Path) -> Path:
    path = folder / "dpo.yaml"
    path.write_text(
        "method: {name: dpo}\ndata: {train: pairs.jsonl}\nmodel: {device: cpu}\nsteps: 1\nprompts_per_step: 1\n"
    )
    return path


def test_pairs_that_are_ties_only_are_written_with_a_notice_and_refused_in_training(house: Path) -> None:
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    judged = vigneron("label", "file.jsonl", "--judge", option("biased"), "--out", "pairs.jsonl")
    assert judged.code == 0
    assert "note: all pairs are ties" in judged.out
    write_dpo(house)
    refused = vigneron("validate", "dpo.yaml")
    assert refused.code == 2
    assert (
        refused.err == "error: data: 'pairs.jsonl': all 1 pairs are ties (`preferred` is 0.5): nothing can be learned\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--people", "file.jsonl"], "--people needs --judge"),
        (["--judge", "J", "--best"], "--judge labels pairs: leave out --best, --scores, --solutions and --as"),
        (["--judge", "J", "--principle", "kind"], "--principle needs --principles: the file that has it"),
        (["--judge", "J", "--checker", "equality"], "--checker: equality needs the column 'answer', which no row has"),
        (
            ["--judge", "J", "--principles", "ladder", "--principle", "all"],
            "--principle: 'ladder' has no principle 'all' (available: running sums, all terms)",
        ),
        (["--judge", "{kind: python}"], "--judge: 'judge.function' is missing"),
    ],
)
def test_mistakes_are_one_line(house: Path, words: Sequence[str], line: str) -> None:
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    refused = vigneron(
        "label", "file.jsonl", "--out", "pairs.jsonl", *(option("biased") if word == "J" else word for word in words)
    )
    assert refused.code == 2
    assert refused.err.startswith(f"error: {line}")
    assert len(refused.err.splitlines()) == 1
    assert not (house / "pairs.jsonl").exists()


def test_a_checker_that_fails_is_one_line(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (house / "failing_checks.py").write_text("def check(completions, **_): return [1 / 0]")
    monkeypatch.syspath_prepend(str(house))
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    words = ["--judge", option("biased"), "--checker", "failing_checks:check", "--out", "pairs.jsonl"]
    refused = vigneron("label", "file.jsonl", *words)
    assert refused.code == 2
    assert refused.err.startswith("error: checker 'failing_checks:check' raised ZeroDivisionError")
    assert len(refused.err.splitlines()) == 1
    assert not (house / "pairs.jsonl").exists()
