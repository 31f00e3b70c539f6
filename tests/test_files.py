"""Writing rows for a user: one writer and one check for all commands."""

import json
from pathlib import Path

import pytest

from vigneron.commands import judging
from vigneron.errors import UserError
from vigneron.files import check_out, write_rows
from vigneron.training import record_samples


def test_all_commands_write_rows_in_the_same_way(tmp_path: Path) -> None:
    rows = [{"prompt": "größer\n?", "reward": 0.5}, {"prompt": [{"role": "user", "content": "a"}], "reward": None}]
    write_rows(tmp_path / "rows.jsonl", rows)
    text = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.split("\n")[:-1]] == rows
    assert "größer" in text
    assert judging.write_rows is record_samples.write_rows is write_rows
    assert judging.check_out is record_samples.check_out is check_out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rows.csv", "should end in .jsonl"),
        ("there.jsonl", "exists: choose another name"),
        ("none/rows.jsonl", "the folder '.*none' does not exist"),
    ],
)
def test_where_rows_cannot_be_written_is_known_before(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "there.jsonl").touch()
    check_out(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match=line):
        check_out(tmp_path / name)
