"""The experiment on label noise: its labels, its table, and all of it with a tiny model."""

from pathlib import Path

import pytest
from benchmarks.emerging import rlaif


def test_a_label_is_flipped_with_its_probability_and_always_the_same_way() -> None:
    texts = [f"1\n{number}" for number in range(2000)]
    columns = {"answer": ["1\n7"] * 2000, "noise_seed": [0] * 2000}
    clean = rlaif.noisy_rule(texts, texts, noise=[0.0] * 2000, **columns)
    assert clean == [float(text == "1\n7") for text in texts]
    noisy = rlaif.noisy_rule(texts, texts, noise=[0.2] * 2000, **columns)
    flips = sum(one != other for one, other in zip(clean, noisy, strict=True))
    assert 340 < flips < 460, "400 ± 18"
    assert noisy == rlaif.noisy_rule(texts, texts, noise=[0.2] * 2000, **columns)


def test_the_table_pairs_by_seed() -> None:
    """Of two seeds: 0.5 − 0.6 and 0.7 − 0.6, mean 0, standard deviation 0.1414, t = 12.706: ± 1.271."""
    records = [{"arm": "base", "noise": 0.0, "seed": 0, "accuracy": 0.4}]
    for seed, values in enumerate([{0.0: 0.6, 0.2: 0.5}, {0.0: 0.6, 0.2: 0.7}]):
        records += [{"arm": "direct", "noise": noise, "seed": seed, "accuracy": x} for noise, x in values.items()]
    lines = rlaif.table(records).splitlines()
    assert lines[2].startswith("| base | 0 | 1 | 0.400 |")
    assert lines[4].startswith("| direct | 0.2 | 2 | 0.600 ± 1.271 | – | 0.200 ± 1.271 | 0.000 ± 1.271 |")


@pytest.mark.slow
def test_the_whole_of_it_with_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rlaif.main(["--out", str(tmp_path), "--seeds", "0", "--small"])
    records = rlaif.read_records(tmp_path)
    assert [(record["arm"], record["noise"]) for record in records] == [
        ("base", 0.0),
        *((arm, noise) for noise in rlaif.NOISES for arm in rlaif.ARMS),
    ]
    capsys.readouterr()
    rlaif.main(["--out", str(tmp_path), "--seeds", "0", "--small"])
    assert rlaif.read_records(tmp_path) == records, "what is there is not run again"
    assert "| model | 0.4 | 1 |" in capsys.readouterr().out
