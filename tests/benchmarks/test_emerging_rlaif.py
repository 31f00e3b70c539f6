"""The experiment on label noise: its labels, its table, and all of it with a tiny model."""

from pathlib import Path

import pytest
from benchmarks.emerging import rlaif
from benchmarks.emerging.records import Records, difference


def test_a_label_is_flipped_with_its_probability_and_always_the_same_way() -> None:
    texts = [f"1\n{number}" for number in range(2000)]
    columns = {"answer": ["1\n7"] * 2000, "noise_seed": [0] * 2000}
    clean = rlaif.noisy_rule(texts, texts, noise=[0.0] * 2000, **columns)
    assert clean == [float(text == "1\n7") for text in texts]
    noisy = rlaif.noisy_rule(texts, texts, noise=[0.2] * 2000, **columns)
    flips = sum(one != other for one, other in zip(clean, noisy, strict=True))
    assert 340 < flips < 460, "400 ± 18"
    assert noisy == rlaif.noisy_rule(texts, texts, noise=[0.2] * 2000, **columns)


def test_differences_are_paired_by_seed() -> None:
    """Of two seeds: 0.5 − 0.6 and 0.7 − 0.6, mean 0, standard deviation 0.1414, t = 12.706: ± 1.271."""
    records = [{"arm": "base", "seed": 0, "accuracy": 0.4}]
    for seed, (clean, noisy) in enumerate([(0.6, 0.5), (0.6, 0.7)]):
        records += [
            {"arm": "direct-0", "seed": seed, "accuracy": clean},
            {"arm": "direct-0.2", "seed": seed, "accuracy": noisy},
        ]
    assert difference(records, "direct-0.2", "direct-0", "accuracy").endswith(" 0.000 ± 1.271")
    assert difference(records, "direct-0.2", "base", "accuracy").endswith(" 0.200 ± 1.271"), "one base for all seeds"


@pytest.mark.slow
def test_the_whole_of_it_with_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rlaif.main(["--out", str(tmp_path), "--seeds", "0", "--small"])
    records = Records(tmp_path, "rlaif")
    first = records.read()
    assert [record["arm"] for record in first] == ["base", *rlaif.ARMS]
    capsys.readouterr()
    rlaif.main(["--out", str(tmp_path), "--seeds", "0", "--small"])
    assert records.read() == first, "what is there is not run again"
    assert "| model-0.4 | 1 |" in capsys.readouterr().out
