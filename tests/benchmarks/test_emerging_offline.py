"""The offline experiment with a tiny model: every arm runs, what is there is skipped, and the table is of all seeds."""

from pathlib import Path

import pytest
from benchmarks.emerging.offline import ARMS, in_form, main, right_against_wrong, with_gains


@pytest.mark.slow
def test_every_arm_runs_and_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--out", str(tmp_path), "--small", "--seeds", "0"])
    lines = (tmp_path / "offline.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(ARMS)
    assert not any("failed" in line for line in lines), lines
    printed = capsys.readouterr().out
    assert all(f"| {arm} |" in printed for arm in ("base", *ARMS))
    main(["--out", str(tmp_path), "--small", "--seeds", "0"])
    assert (tmp_path / "offline.jsonl").read_text().splitlines() == lines
    main(["table", "--out", str(tmp_path)])


def test_pairs_are_of_one_prompt() -> None:
    rows = [
        {"prompt": p, "completion": c, "reward": r}
        for p, c, r in (("a", "1", 1.0), ("a", "2", 0.0), ("a", "3", 0.0), ("b", "4", 1.0), ("b", " ", 0.0))
    ]
    assert right_against_wrong(rows) == [{"prompt": "a", "chosen": "1", "rejected": "2", "pair": 0}]


def test_the_form_is_one_number_a_line() -> None:
    assert in_form("3\n7", 2)
    assert not in_form("3\n7", 3)
    assert not in_form("3 7", 1)
    assert not in_form("", 1)


def test_gains_are_paired_by_seed_and_leave_out_what_failed() -> None:
    rows = (("base", 0, 0.4), ("base", 1, 0.5), ("topr", 0, 0.5), ("topr", 1, 0.7))
    records = [{"arm": arm, "seed": seed, "accuracy": accuracy} for arm, seed, accuracy in rows]
    found = with_gains([*records, {"arm": "oreo", "seed": 0, "failed": "loss: not finite"}])
    assert [record.get("gain") for record in found] == [None, None, pytest.approx(0.1), pytest.approx(0.2)]
