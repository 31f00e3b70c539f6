"""Values of tokens: packed and read again, kept in some steps, forgotten by a resume, absent from older runs."""

import math
import sqlite3
import zlib
from pathlib import Path

import pytest

from support.view_data import write_run
from vigneron.errors import UserError
from vigneron.run_store.sample_search import SampleSearch
from vigneron.run_store.samples import SampleStore
from vigneron.run_store.speed import speed_of, with_speeds
from vigneron.run_store.token_values import STEPS, TokenValues, is_due, pack, unpack

VALUES = TokenValues([" a", "\n", "é"], [True, False, True], {"logprob": [-0.12345678, None, -2.0]}, left_out=4)


def test_a_record_is_read_as_it_was_written_to_three_digits() -> None:
    found = unpack(pack(VALUES))
    assert (found.pieces, found.trained, found.left_out) == ([" a", "\n", "é"], [True, False, True], 4)
    assert found.values["logprob"] == [pytest.approx(-0.12345678, rel=1e-3), None, -2.0]
    odd = TokenValues(["a", "b", "c"], [True] * 3, {"kl": [math.nan, 1e9, math.inf], "ratio": [1.0] * 3})
    assert unpack(pack(odd)).values == {"kl": [None, 65504.0, 65504.0], "ratio": [1.0, 1.0, 1.0]}
    assert unpack(pack(TokenValues([], [], {"kl": []}))) == TokenValues([], [], {})


@pytest.mark.parametrize(
    "text",
    [
        '{"pieces": ["a"], "trained": "11", "names": [], "left_out": 0}\n',
        '{"pieces": ["a"], "trained": "1", "names": ["kl"], "left_out": 0}\n',
        *("[]", "{}", "x", '{"pieces": 1'),
    ],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        unpack(zlib.compress(text.encode()))


@pytest.mark.parametrize("steps", [1, 7, 200, 1000, 100_000])
def test_the_steps_that_are_kept_are_few_and_have_both_ends(steps: int) -> None:
    kept = [step for step in range(1, steps + 1) if is_due(step, steps)]
    assert kept[0] == 1
    assert kept[-1] == steps
    assert min(steps, STEPS) <= len(kept) <= 2 * STEPS


def test_a_resume_forgets_what_came_later_and_the_nearest_step_is_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=8)
    store = SampleStore(run)
    for step in (2, 7):
        store.add_tokens(step, "train", {3: VALUES, 1: VALUES})
    with SampleSearch(run) as search:
        assert search.with_tokens(2, "train") == ([1, 3], 2)
        assert search.with_tokens(6, "train") == ([], 7)
        assert search.tokens(7, "train", 3) == unpack(pack(VALUES))
        assert search.tokens(7, "train", 2) is None
    store.forget_after(6)
    store.close()
    with SampleSearch(run) as search:
        assert search.with_tokens(6, "train") == ([], 2)


def test_a_run_of_an_older_version_has_none_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    database = sqlite3.connect(run / "samples.sqlite")
    database.execute("INSERT INTO tokens VALUES (1, 'train', 0, 'no record')")
    database.commit()
    with SampleSearch(run) as search, pytest.raises(UserError, match="cannot read"):
        search.tokens(1, "train", 0)
    database.execute("DROP TABLE tokens")
    database.commit()
    database.close()
    with SampleSearch(run) as search:
        assert search.with_tokens(1, "train") == ([], None)
        assert search.tokens(1, "train", 0) is None


def test_speed_is_read_from_a_line_of_timings(tmp_path: Path) -> None:
    line = {"step": 1, "seconds": 2.0, "tokens": 50, "memory/host_gb": 1.5, "start": {"total": 3.0}}
    assert speed_of(line) == {"speed/step_seconds": 2.0, "speed/tokens_per_second": 25.0, "memory/host_gb": 1.5}
    assert speed_of({"step": 1, "seconds": 0.0, "tokens": 50}) == {}
    (tmp_path / "timings.jsonl").write_text('{"step": 1, "seconds": 2.0}\ndamaged\n')
    records = [{"step": 0, "reward": 1.0}, {"step": 1, "reward": 2.0}]
    assert list(with_speeds(records, tmp_path)) == [records[0], {**records[1], "speed/step_seconds": 2.0}]
