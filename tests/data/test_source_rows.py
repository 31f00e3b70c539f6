"""The pass over all rows: what it keeps, how it is split between processes, and what it says of bad rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.minimal_recipe import MINIMAL
from vigneron.config import Config
from vigneron.data import digests, first_pass
from vigneron.data import rows as data_rows
from vigneron.data.prompts import NumberedRow
from vigneron.data.rows import DataRows, Subset, record_of_rows
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import load_data

DEMONSTRATIONS = {"method": {"name": "sft"}}
PAIRS = {"method": {"name": "dpo"}}


def config_of(path: Path, **changes: Any) -> Config:
    given = {**MINIMAL, "reward": {"kind": "binary"}, "data": {"train": str(path)}, **changes}
    if given["method"]["name"] == "dpo":
        del given["reward"]
    return check_config(given, "test")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(params=["one process", "several processes"])
def _processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "several processes":
        monkeypatch.setattr(first_pass, "PARALLEL_FROM", 0)
        monkeypatch.setattr(first_pass, "cores", lambda: 3)


@pytest.mark.usefixtures("_processes")
class TestPass:
    def test_duplicates_are_dropped_and_the_rest_keeps_its_order(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"p{n % 7}", "answer": f"a{n % 7}"} for n in range(20)]
        rows[15] = {"answer": "a1", "prompt": "p1"}  # another order of keys
        data = load_data(config_of(write(tmp_path / "a.jsonl", rows)))
        assert data.train == rows[:7]
        assert data.notices == (f"'{tmp_path / 'a.jsonl'}': 13 duplicate rows are dropped",)
        assert [row.number for row in data.train if isinstance(row, NumberedRow)] == list(range(1, 8))

    def test_one_prompt_with_two_answers_is_an_error_for_a_reward_and_not_for_sft(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"p{n}", "answer": "a"} for n in range(9)] + [{"prompt": "p2", "answer": "b"}]
        path = write(tmp_path / "a.jsonl", rows)
        line = r"^data: '.*a.jsonl', rows 3 and 10 have the same prompt and different answers: keep one$"
        with pytest.raises(UserError, match=line):
            load_data(config_of(path))
        assert len(load_data(config_of(path, **DEMONSTRATIONS)).train) == 10

    def test_the_first_bad_row_is_named_with_the_number_of_others(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"p{n}", "answer": "a"} for n in range(12)]
        for bad in (4, 6, 11):
            del rows[bad]["answer"]
        with pytest.raises(UserError, match=r"row 5 has no 'answer' .*, nor do 2 other rows: add it, or set"):
            load_data(config_of(write(tmp_path / "a.jsonl", rows)))
        (tmp_path / "a.jsonl").write_text('{"prompt": "p", "answer": "a"}\n' * 8 + '{"prompt": \n')
        with pytest.raises(UserError, match=r"^data: '.*a.jsonl', line 9 is not JSON"):
            load_data(config_of(tmp_path / "a.jsonl"))

    def test_counts_of_left_out_pairs_are_those_of_all_rows(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"p{n}", "chosen": "c", "rejected": "c" if n % 4 == 3 else "r"} for n in range(12)]
        data = load_data(config_of(write(tmp_path / "a.jsonl", rows), **PAIRS))
        assert [row["prompt"] for row in data.train] == [f"p{n}" for n in range(12) if n % 4 != 3]
        assert data.train[3]["prompt"] == "p4"
        assert data.notices == (
            f"'{tmp_path / 'a.jsonl'}': 3 pairs have equal texts and are left out, the first in row 4: 'p3'",
        )

    def test_held_out_prompts_in_the_training_data_are_noticed(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"p{n}", "answer": "a"} for n in range(10)]
        train, held_out = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", [*rows[7:], {**rows[0]}])
        config = config_of(train, data={"train": str(train), "held_out": str(held_out)})
        (notice,) = load_data(config).notices
        assert notice.startswith("4 of 4 prompts of `held_out` are also in `train`, the first in row 1: 'p7'")

    @pytest.mark.parametrize("talk", [False, True])
    def test_forms_of_unicode_of_one_prompt_are_one_prompt(self, tmp_path: Path, talk: bool) -> None:
        texts = "caf\u00e9?", "cafe\u0301?"
        prompts = [[{"role": "user", "content": text}] if talk else text for text in texts]
        train, held_out = (
            write(tmp_path / f"{number}.jsonl", [{"prompt": prompt, "answer": "a"}])
            for number, prompt in enumerate(prompts)
        )
        (notice,) = load_data(config_of(train, data={"train": str(train), "held_out": str(held_out)})).notices
        assert notice.startswith("1 of 1 prompts of `held_out` are also in `train`")


def test_a_prompt_of_many_marks_is_hashed_in_linear_time() -> None:
    """To normalise them takes hours."""
    marks = "\u0301\u0323" * 500_000
    assert digests.prompt_digest({"prompt": f"a{marks}"}) != digests.prompt_digest({"prompt": f"b{marks}"})


def test_the_longest_rows_are_known_and_the_record_is_that_of_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_rows, "LONGEST", 3)
    rows = [{"prompt": "x" * length, "answer": "a"} for length in (5, 9, 2, 7, 8, 1)]
    train = load_data(config_of(write(tmp_path / "a.jsonl", rows))).train
    assert isinstance(train, DataRows)
    assert train.longest.tolist() == [1, 3, 4]
    assert train.record == record_of_rows(rows)
    assert list(Subset(train, train.longest)) == [rows[1], rows[3], rows[4]]
    assert (train[-1], train[1:3]) == (rows[5], rows[1:3])
    with pytest.raises(IndexError):
        train[6]
    monkeypatch.setattr(digests, "RECORDED", 3)
    assert record_of_rows(rows).startswith("6 rows, sha256 ")
    assert np.array_equal(data_rows.longest_of(rows, ("prompt",)), train.longest)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "answer": "a"} for n in range(4)]
    train = load_data(config_of(write(tmp_path / "a.jsonl", rows))).train
    assert train[0] == rows[0]
    write(tmp_path / "a.jsonl", rows[::-1] + rows)
    with pytest.raises(UserError, match=r"^data: '.*a.jsonl' changed while the run was reading it: restore it"):
        train[0]
