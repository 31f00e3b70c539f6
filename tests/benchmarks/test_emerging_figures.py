"""The figures of section 5 are drawn from the archive of its records."""

from pathlib import Path

import pytest
from benchmarks.emerging.figures import DRAWN, centre_and_half, main, read

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "docs" / "results" / "logs" / "emerging.tar.xz"


def test_every_experiment_has_three_seeds() -> None:
    records = read(ARCHIVE)
    for name in DRAWN:
        assert {r["seed"] for r in records[name]} == {0, 1, 2}, name


def test_the_interval_by_hand() -> None:
    """1, 2, 3: mean 2 and 4.303 / √3."""
    middle, half = centre_and_half([1.0, 2.0, 3.0])
    assert (middle, round(half, 3)) == (2.0, 2.484)


@pytest.mark.slow
def test_the_figures_in_the_docs_are_these(tmp_path: Path) -> None:
    main([str(ARCHIVE), "--out", str(tmp_path)])
    for name in DRAWN:
        drawn = (tmp_path / f"{name}.svg").read_text()
        assert drawn.count("<text") > 5
        kept = (ROOT / "docs" / "results" / "emerging" / f"{name}.svg").read_text()
        assert kept.count("<path") == drawn.count("<path"), name
