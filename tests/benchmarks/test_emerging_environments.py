"""The experiment on environments: the same code with a tiny model, continued where it stopped."""

from pathlib import Path

import pytest
from benchmarks.emerging import environments
from benchmarks.emerging.records import Records


@pytest.mark.slow
def test_it_runs_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--out", str(tmp_path), "--small", "--seeds", "0"]
    environments.main([*common, "--arms", "sums-tool"])
    kept = Records(tmp_path, environments.NAME)
    first = kept.file.read_text()
    environments.main([*common, "--arms", "sums-tool", "sums"])
    assert kept.file.read_text().startswith(first)
    records = kept.read()
    assert [record["arm"] for record in records] == ["sums-tool-warmup", "sums-tool", "sums-warmup", "sums"]
    assert all(record["turns"] == 1 for record in records[2:])
    assert all(0 <= record[figure] <= 1 for record in records for figure in ("reward", "accuracy"))
    out = capsys.readouterr().out
    assert "| sums-tool | 1 |" in out
    assert "sums-tool − sums, accuracy: " in out
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["sums-tool-warmup", "sums-warmup"]


def test_every_arm_has_recipes() -> None:
    for arm in environments.ARMS:
        for stage in ("sft", "env"):
            recipe, keys = environments.keys_of(arm, stage, "smollm2-135m", small=False, part="held_out")
            task = keys["data"]["task"]
            assert recipe.removeprefix(f"{stage}-").startswith(arm)
            assert task.startswith(arm)
            assert task.endswith("-warmup") == (stage == "sft" and arm != "sums")
