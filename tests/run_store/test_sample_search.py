"""Samples as a page asks for them: against a plain search over all of them."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.errors import UserError
from vigneron.run_store.sample_search import SORTS, WHICH, Histogram, SampleQuery, SampleSearch, histogram
from vigneron.run_store.samples import Kind, Sample, SampleStore


def sample(step: int, number: int, kind: Kind = "train", **changes: object) -> Sample:
    rubric = {"category": "odd" if number % 2 else "even", "version": "1", "items": {}}
    values = {
        "step": step,
        "kind": kind,
        "sample": number,
        "prompt": f"prompt {number % 3}",
        "completion": f"100% of {number}_{step}",
        "answer": None if number == 1 else "Four",
        "reward": None if number == 2 else number / 10 * (-1) ** number,
        "advantage": None if kind == "eval" else -float(number),
        "correct": [True, False, None][number % 3],
        "truncated": number == 5,
        "extras": {"rubric": rubric, "origin": "revised" if number > 4 else "fresh"} if kind == "train" else {},
    }
    return Sample(**{**values, **changes})  # type: ignore[arg-type]


SAMPLES = [sample(step, number) for step in (1, 2, 5) for number in range(8)]
SAMPLES += [sample(step, number, "eval") for step in (0, 5) for number in range(3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SampleSearch:
    folder = tmp_path_factory.mktemp("run")
    writing = SampleStore(folder)
    writing.add(SAMPLES)
    writing.close()
    return SampleSearch(folder)


FITS = {
    "all": lambda s: True,
    "correct": lambda s: s.correct is True,
    "wrong": lambda s: s.correct is False,
    "truncated": lambda s: s.truncated,
    "missing": lambda s: s.reward is None,
}


@settings(max_examples=100, deadline=None)
@given(
    step=st.sampled_from([0, 1, 5, 7]),
    kind=st.sampled_from(["train", "eval"]),
    which=st.sampled_from(list(WHICH)),
    search=st.sampled_from(["", "fOUR", "%", "_", "0_1", "\\", "prompt 2", "'"]),
    category=st.sampled_from(["", "odd", "none"]),
    origin=st.sampled_from(["", "", "fresh", "revised"]),
    reward_from=st.sampled_from([None, None, -0.3, 0.0]),
    reward_to=st.sampled_from([None, None, 0.4]),
    sort=st.sampled_from(list(SORTS)),
    limit=st.integers(1, 9),
    offset=st.integers(0, 4),
)
def test_a_page_is_what_a_plain_search_finds(store: SampleSearch, **asked: object) -> None:
    asking = SampleQuery(**asked)  # type: ignore[arg-type]
    found = store.find(asking)
    fitting = [
        s
        for s in SAMPLES
        if (s.step, s.kind) == (asking.step, asking.kind)
        and FITS[asking.which](s)
        and (
            not asking.search
            or any(asking.search.lower() in str(t or "").lower() for t in (s.prompt, s.completion, s.answer))
        )
        and (not asking.category or s.extras.get("rubric", {}).get("category") == asking.category)
        and (not asking.origin or s.extras.get("origin") == asking.origin)
        and (asking.reward_from is None or (s.reward is not None and s.reward >= asking.reward_from))
        and (asking.reward_to is None or (s.reward is not None and s.reward <= asking.reward_to))
    ]
    key = asking.sort.removeprefix("-")
    down = -1 if asking.sort.startswith("-") else 1
    fitting.sort(key=lambda s: s.sample)
    if key == "group":
        first: dict[str, int] = {}
        for s in fitting:
            first.setdefault(s.prompt, s.sample)
        fitting.sort(key=lambda s: (first[s.prompt], s.reward is None, -(s.reward or 0)))
    else:
        fitting.sort(key=lambda s: (getattr(s, key) is None, down * (getattr(s, key) or 0)))
    assert found.count == len(fitting)
    assert found.samples == fitting[asking.offset : asking.offset + asking.limit]
    assert found.rewards == histogram([s.reward for s in fitting if s.reward is not None])
    assert found.lengths == histogram([len(s.completion) for s in fitting])


def test_histograms_by_hand() -> None:
    found = histogram([0.0, 0.04, 0.5, 1.0])
    assert found is not None
    assert (found.low, found.high, found.mean) == (0.0, 1.0, pytest.approx(0.385))
    assert [(place, count) for place, count in enumerate(found.counts) if count] == [(0, 2), (10, 1), (19, 1)]
    assert histogram([0.3, 0.3]) == Histogram(0.3, 0.3, [2], 0.3)
    assert histogram([]) is None


def test_steps(store: SampleSearch) -> None:
    assert store.steps("train") == [1, 2, 5]
    assert store.steps("eval") == [0, 5]
    assert store.kinds() == ["train", "eval"]
    around = store.steps_around("train", 3)
    assert (around.first, around.before, around.at, around.after, around.last) == (1, 1, 2, 5, 5)
    assert store.steps_around("eval", None).at == 5
    assert store.steps_around("train", 0).at == 1


def test_a_prompts_history_newest_first(store: SampleSearch) -> None:
    history = store.history("prompt 1", "train")
    assert [(s.step, s.sample) for s in history] == [(step, n) for step in (5, 2, 1) for n in (1, 4, 7)]
    assert store.history("prompt", "train") == []


def test_an_older_store_has_a_history_too(tmp_path: Path) -> None:
    writing = SampleStore(tmp_path)
    writing.add(SAMPLES)
    writing.close()
    with sqlite3.connect(tmp_path / "samples.sqlite") as db:
        db.execute("DROP TABLE prompts")
        db.execute("DROP TABLE steps")
    db.close()
    with SampleSearch(tmp_path) as store:
        before = store.history("prompt 1", "train")
        assert store.steps("train") == [1, 2, 5]
    SampleStore(tmp_path).close()  # a resumed run opens it, and makes what is missing
    with SampleSearch(tmp_path) as store:
        assert store.history("prompt 1", "train") == before
        assert store.steps("eval") == [0, 5]
        assert len(before) == 9


def test_what_is_forgotten_is_no_longer_in_a_history(tmp_path: Path) -> None:
    writing = SampleStore(tmp_path)
    writing.add(SAMPLES)
    writing.forget_after(2)
    writing.close()
    with SampleSearch(tmp_path) as store:
        assert {s.step for s in store.history("prompt 0", "train")} == {1, 2}
        assert store.steps("eval") == [0]


def test_a_store_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    """Who may write anywhere (root) is not stopped by the folder's mode: this then tests less."""
    folder = tmp_path / "run"
    folder.mkdir()
    writing = SampleStore(folder)
    writing.add(SAMPLES)
    writing.close()
    folder.chmod(0o555)
    try:
        with SampleSearch(folder) as store:
            assert len(store.find(SampleQuery(1)).samples) == 8
    finally:
        folder.chmod(0o755)


def test_only_errors_of_queries_are_errors_of_the_file(tmp_path: Path) -> None:
    writing = SampleStore(tmp_path)
    writing.add(SAMPLES)
    writing.close()
    with pytest.raises(KeyError, match="ours"), SampleSearch(tmp_path):
        raise KeyError("ours")
    with sqlite3.connect(tmp_path / "samples.sqlite") as db:
        db.execute("UPDATE samples SET extras = '{', step = CASE step WHEN 5 THEN 'x' ELSE step END")
        db.execute("UPDATE steps SET step = 'x' WHERE step = 5")
    db.close()
    queries: list[Callable[[SampleSearch], object]] = [
        lambda store: store.find(SampleQuery(1)),
        lambda store: store.one(1, "train", 0),
        lambda store: store.history("prompt 1", "train"),
        lambda store: store.steps_around("train", 2),
    ]
    for query in queries:
        with SampleSearch(tmp_path) as store, pytest.raises(UserError, match=r"samples\.sqlite': .*move the file away"):
            query(store)
