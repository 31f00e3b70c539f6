"""Fuzzed configs, rubrics, datasets, checkpoints and runs: every case works or is one clear error.

No traceback, no hang, nothing written elsewhere. The cases are the same every time: `python -m benchmarks.fuzz` does it
at length, with others.
"""

import time
from pathlib import Path

import pytest
from benchmarks.fuzz import fuzz
from benchmarks.fuzzing import guard
from benchmarks.fuzzing.guard import Finding, outcome_of
from benchmarks.fuzzing.kinds import case_of_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vigneron.errors import UserError

KINDS = ("config", "rubric", "dataset", "checkpoint", "run", "run_folder", "judge_reply", "channel")
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}
numbers = st.integers(0, 10**12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thirty_of_each_kind(kind: str) -> None:
    @settings(max_examples=30, **QUIET)
    @given(numbers)
    def check(number: int) -> None:
        fuzz(kind, number)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resume", "model"])
def test_ten_with_a_model(kind: str) -> None:
    @settings(max_examples=10, **QUIET)
    @given(numbers)
    def check(number: int) -> None:
        fuzz(kind, number)

    check()


@settings(max_examples=25, **QUIET)
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@pytest.mark.parametrize("name", ["recipe.yaml", "rubric.yaml", "rubric.json", "rows.jsonl", "rows.csv"])
def test_any_bytes_at_all(name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / name).write_bytes(content)
    outcome_of(case_of_bytes(folder / name), folder)


def test_the_guard_finds_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def user_error(text: str) -> None:
        error = UserError("")
        error.args = (text,)
        raise error

    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    monkeypatch.setattr(guard, "CPU_SECONDS", 0.2)
    cases = {
        "ZeroDivisionError": lambda: 1 / 0,
        "hangs": lambda: [None for _ in iter(int, 1)],
        "reaches outside": lambda: outside.write_text("x"),
        "not printable": lambda: user_error("a\x1b"),
        "a line of": lambda: user_error("x" * 5000),
        "lines": lambda: user_error("x\n" * 500),
    }
    for what, case in cases.items():
        with pytest.raises(Finding, match=what):
            outcome_of(case, inside)
    assert not outside.exists(), "what reaches outside is kept from happening"
    outside.write_text("precious")
    (inside / "link").symlink_to(outside)
    with pytest.raises(Finding, match="reaches outside"):
        outcome_of(lambda: (inside / "link").write_text("x"), inside)
    assert outside.read_text() == "precious"
    assert outcome_of((inside / "link").unlink, inside) == "worked", "a link itself may go"
    assert outcome_of(lambda: (inside / "x").write_text("x"), inside) == "worked"
    assert outcome_of(lambda: user_error("short"), inside) == "refused"
    assert outcome_of(lambda: time.sleep(0.3), inside) == "worked", "it is CPU time that counts"
