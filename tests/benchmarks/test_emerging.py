"""The experiments with section 5 run from start to end with tiny models, and do not repeat what is there."""

import json
from pathlib import Path

import pytest
from benchmarks.emerging import circular, diversity
from benchmarks.emerging.records import Records, interval


def test_the_interval_by_hand() -> None:
    """1, 2, 3: mean 2, std 1, t = 4.303 with three values: 4.303 / √3 = 2.484."""
    assert interval([1.0, 2.0, 3.0]) == "2.000 ± 2.484"
    assert interval([1.5]) == "1.500"


def test_exploitability_by_hand() -> None:
    """Against rock alone paper wins 0.9; against the balanced mix everything wins half."""
    assert circular.exploitability({"rock": 1.0, "paper": 0.0, "scissors": 0.0}) == pytest.approx(0.4)
    assert circular.exploitability(dict.fromkeys(circular.WORDS, 1 / 3)) == pytest.approx(0.0)
    assert circular.exploitability(dict.fromkeys(circular.WORDS, 0.0)) == pytest.approx(0.5), "no word always loses"


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    records, runs = Records(tmp_path, "some"), list[tuple[str, int]]()

    def run(arm: str, seed: int) -> dict[str, float]:
        runs.append((arm, seed))
        return {"accuracy": 0.5}

    records.add_missing([("a", 0)], run)
    records.add_missing([("a", 0), ("b", 0)], run)
    assert runs == [("a", 0), ("b", 0)]
    assert [record["arm"] for record in records.read()] == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [circular, diversity], ids=["circular", "diversity"])
def test_an_experiment_runs_small(tmp_path: Path, experiment: object, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.main(["--out", str(tmp_path), "--small", "--seeds", "0"])  # type: ignore[attr-defined]
    (file,) = [file for file in tmp_path.glob("*.jsonl") if file.stem in ("circular", "diversity")]
    arms = {json.loads(line)["arm"] for line in file.read_text().splitlines()}
    assert set(experiment.ARMS) <= arms  # type: ignore[attr-defined]
    assert capsys.readouterr().out.count("|") > 20
