"""Inverse constitutional AI: proposals are merged, tested on held-out pairs, and kept where they predict."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import vigneron, write_jsonl
from vigneron.core.intervals import wilson
from vigneron.rubric.infer import merged, parse_proposals, similarity
from vigneron.rubric.principles import read_principles

FUNCTIONS = '''
import json
import re

def judge(messages):
    """Preferred texts are short ones. It proposes three principles: short, the same again, and about vowels."""
    request = next(m["content"] for m in messages if m["role"] == "user")
    seen = {n: t for n, _, t in re.findall(r"<(\\w+)-([0-9a-f]{8,})>\\n(.*?)\\n?</", request, re.DOTALL)}
    if "preferred" in seen:
        short = "The better answer is short." if len(seen["question"]) % 2 else "The better answer is very short."
        return json.dumps({"principles": [short, "It has many vowels."]})
    if "short" in request.split("\\n")[0]:
        score = 0.5 + 0.5 * ((len(seen["first"]) < len(seen["second"])) - (len(seen["first"]) > len(seen["second"])))
    else:
        score = 0.5
    return json.dumps({"reasoning": "", "score": score, "confidence": 1})

def mute(messages):
    return "I have none."

def wrong(messages):
    if "<preferred-" in messages[-1]["content"]:
        return json.dumps({"principles": ["The better answer is long."]})
    return json.dumps({"reasoning": "", "score": 0.5, "confidence": 1})
'''


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "infer_judges.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": "q" * n, "chosen": "a" * n, "rejected": "b" * (2 * n)} for n in range(1, 31)]
    write_jsonl(tmp_path / "pairs.jsonl", map(json.dumps, rows))
    return tmp_path


def option(name: str) -> str:
    return f"{{kind: python, function: 'infer_judges:{name}'}}"


def test_what_predicts_is_kept(house: Path) -> None:
    found = vigneron("rubric", "infer", "pairs.jsonl", "--judge", option("judge"), "--out", "principles.yaml")
    assert found.code == 0, found.err
    assert "30 proposals, 2 different" in found.out
    texts = [principle.text for principle in read_principles("principles.yaml")]
    assert texts in (["The better answer is short."], ["The better answer is very short."])
    low, high = wilson(15, 15)
    assert f"# predicts 100% of 15 held-out pairs ({low:.0%} to {high:.0%})" in (house / "principles.yaml").read_text()
    again = vigneron("rubric", "infer", "pairs.jsonl", "--judge", option("judge"), "--out", "principles.yaml")
    assert again.err == "error: 'principles.yaml' exists: choose another name\n"


def test_soft_labels_are_turned_and_ties_left_out(house: Path) -> None:
    rows = [{"prompt": "q" * n, "chosen": "b" * 2 * n, "rejected": "a" * n, "preferred": 0.1} for n in range(1, 25)]
    rows += [{"prompt": "tie", "chosen": "long " * n, "rejected": "a", "preferred": 0.5} for n in range(1, 25)]
    write_jsonl(house / "soft.jsonl", map(json.dumps, rows))
    found = vigneron("rubric", "infer", "soft.jsonl", "--judge", option("judge"), "--out", "principles.yaml")
    assert found.code == 0, found.err
    assert "predicts 100% of 12 held-out pairs" in (house / "principles.yaml").read_text()


@pytest.mark.parametrize(
    ("judge", "line"),
    [
        ("wrong", "no principle predicts the held-out pairs better than chance: 'p.yaml' is not written"),
        ("mute", "python:infer_judges:mute proposed no principle: see that it replies with JSON"),
    ],
)
def test_nothing_is_written_where_nothing_predicts(house: Path, judge: str, line: str) -> None:
    found = vigneron("rubric", "infer", "pairs.jsonl", "--judge", option(judge), "--out", "p.yaml")
    assert (found.code, found.err) == (2, f"error: {line}\n")
    assert not (house / "p.yaml").exists()


def test_too_few_pairs(house: Path) -> None:
    write_jsonl(house / "few.jsonl", [json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"})])
    found = vigneron("rubric", "infer", "few.jsonl", "--judge", option("judge"), "--out", "p.yaml")
    assert found.err == "error: 'few.jsonl' has 1 pairs that are no ties: at least 4 are needed\n"


def test_near_duplicates_are_merged_by_hand() -> None:
    """`a b c` and `a b c d` share 3 of 4 words; `a b` and `c d` none."""
    assert similarity(frozenset("abc"), frozenset("abcd")) == 0.75
    assert merged(["c d", "a b c", "A, b, c, d!", "a b"]) == [("a b c", 3), ("c d", 1)]
    assert merged(["c d", "a b c", "a b c d"], alike=0.8) == [("c d", 1), ("a b c", 1), ("a b c d", 1)]


@pytest.mark.parametrize("text", ["no", "{}", '{"principles": "one"}', '{"principles": [1]}', "[]"])
def test_unreadable_proposals(text: str) -> None:
    assert parse_proposals(text) is None


def test_proposals_in_a_fence() -> None:
    assert parse_proposals('```json\n{"principles": ["one  two", " "]}\n```') == ["one two"]


def test_wilsons_interval_by_hand() -> None:
    """8 of 10: centre (0.8 + 0.19208) / 1.38416 = 0.7167, half 1.96 · √(0.016 + 0.009604) / 1.38416 = 0.2266."""
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_contains_its_share(given: tuple[int, int]) -> None:
    right, of = given
    low, high = wilson(right, of)
    assert 0 <= low <= right / of + 1e-12
    assert right / of - 1e-12 <= high <= 1
