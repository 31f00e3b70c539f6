"""The experiment on process supervision: its rule by hand, and the whole of it with a tiny model."""

from pathlib import Path

import pytest
from benchmarks.emerging import process


def test_the_rule_labels_every_line() -> None:
    assert process.step_labels("7 + 12 + 5", "7\n19\n24") == [1, 1, 1]
    assert process.step_labels("7 + 12 + 5", "7\n18\n24") == [1, 0, 1]
    assert process.step_labels("7 + 12", " 7 \n\n19\n19\n") == [1, 1, 0]
    row = {"terms": "7 + 12 + 5", "result": "24", "level": 3}
    assert process.is_right(row, "7\n18\n24\n")
    assert not process.is_right(row, "")
    assert process.has_trace_error(row, "7\n18\n24")
    assert process.has_trace_error(row, "24")
    assert not process.has_trace_error(row, "7\n19\n24")


@pytest.mark.slow
def test_all_parts_run_and_what_is_there_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--out", str(tmp_path), "--seeds", "0", "--small"]
    process.main(small)
    records = (tmp_path / process.RECORDS).read_text()
    assert records.count("\n") == 3 + 3 + 3
    out = capsys.readouterr().out
    assert "process − outcome, accuracy" in out
    assert "pspo_released − min, lines" in out
    process.main(["table", *small])
    process.main(small)
    assert (tmp_path / process.RECORDS).read_text() == records
