"""The comparison of pages with room for the longest answer. On a CPU the cache has no pages: it only has to run."""

import pytest

from benchmarks import answer_lengths


@pytest.mark.slow
def test_it_runs_on_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--work", "smoke-lora", "--prompts", "2", "--mean", "8", "--longest", "16", "--cache", "0.001"]
    assert answer_lengths.main(words) == 0
    out = capsys.readouterr().out
    tokens = [int(line.partition('"tokens": ')[2].partition(",")[0]) for line in out.splitlines() if "tokens/s" in line]
    assert len(tokens) == 2
    assert min(tokens) > 4
    assert "ratio answers-4-mean-8-of-16-in-0.001gb" in out
