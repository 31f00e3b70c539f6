"""The experiment on curricula: the same code with a tiny model, continued where it stopped, and its table by hand."""

from pathlib import Path

import pytest
from benchmarks.emerging import curricula
from benchmarks.emerging.records import Record, Records, table


@pytest.mark.slow
def test_it_runs_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--out", str(tmp_path), "--small", "--seeds", "0"]
    curricula.main([*common, "--arms", "cosine"])
    kept = Records(tmp_path, curricula.NAME)
    first = kept.file.read_text()
    curricula.main([*common, "--arms", "cosine", "hard_only", "shuffled", "success"])
    assert kept.file.read_text().startswith(first)
    records = kept.read()
    assert [record["arm"] for record in records] == ["base", "cosine", "hard_only", "shuffled", "success"]
    assert {"level_1", "level_5", "mean"} <= set(records[1])
    assert records[1]["samples"] == records[2]["samples"] == 3 * 4 * 2
    assert "| hard_only | 1 |" in capsys.readouterr().out
    assert not list((tmp_path / "runs").iterdir())


def test_the_table_by_hand() -> None:
    """Level 5 against hard-only, seed by seed: 0.1, 0.2 and 0.3, so 0.2 ± 4.303 · 0.1 / √3 = 0.248."""

    def record(arm: str, seed: int, level_5: float) -> Record:
        others = {f"level_{level}": 1.0 for level in (1, 2, 3, 4)}
        return {"arm": arm, "seed": seed, **others, "level_5": level_5, "mean": (4 + level_5) / 5}

    hard = [record("hard_only", seed, 0.3) for seed in range(3)]
    cosine = [record("cosine", seed, 0.3 + 0.1 * (seed + 1)) for seed in range(3)]
    shuffled = [record("shuffled", 0, 0.5)]
    records = curricula.with_differences([*hard, *cosine, *shuffled])
    lines = table(records, (*curricula.FIGURES, *curricula.DIFFERENCES)).splitlines()[2:]
    rows = {line.split(" | ")[0]: line for line in lines}
    assert "| 0.200 ± 0.248 | -0.020 |" in rows["| cosine"]  # one common seed: no interval
    assert "| 1.000 ± 0.000 |" in rows["| cosine"]
