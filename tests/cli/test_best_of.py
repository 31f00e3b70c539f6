"""Best-of-N: the sample that a model ranks first."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.command_line import vigneron
from support.judged_data import process_config
from support.small_batch import make_batch
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.commands.best_of import BestOf, ranked


def test_the_chosen_sample_by_hand() -> None:
    """Three prompts of two samples: right choice, wrong choice where one was right, nothing right."""
    scores = [0.1, 0.9, 0.7, 0.2, 0.5, 0.5]
    correct = (False, True, False, True, False, False)
    batch = make_batch([1] * 6, [1] * 6).with_signals(correct=correct, rewards_B=torch.zeros(6))
    got = ranked(batch, lambda **_: scores, 2)
    assert got == BestOf(3, 2, accuracy=1 / 3, mean=2 / 6, passed=2 / 3)
    assert got.interval(1 / 3) == pytest.approx(1.96 * (2 / 9 / 3) ** 0.5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Path, Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    made: Any = tiny_config(
        tiny_folder, write_data(place), method={"name": "grpo"}, optimizer={}, reward={"kind": "binary"}, steps=1
    )
    policy = api.train(made, name="policy", runs=place).folder
    models = []
    for name, method in (("process", {}), ("outcome", {"steps": "last"})):
        config = process_config(place, tiny_folder, method, steps=1, eval_every=0)
        models.append(api.train(config, name=name, runs=place).folder)
    return policy, models[0], models[1]


def test_by_a_process_and_an_outcome_model(runs: tuple[Path, Path, Path]) -> None:
    policy, *models = runs
    for model in models:
        answer = vigneron("eval", policy, "--best-of", 4, "--by", model)
        assert answer.code == 0, answer.err
        assert "mean of samples" in answer.out
        assert "pass@4" in answer.out
        assert "10 prompts" in answer.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--by", "x"], "--by has no effect without --best-of"),
        (["--best-of", 4, "--combine", "last"], "--combine has no effect without --by"),
        (["--best-of", 4, "--by", "MODEL", "--samples", 4], "leave out --best-of and --beam"),
        (["--best-of", 4, "--by", "MODEL", "--beam", 2], "--beam searches by the run's own value"),
        (["--best-of", 4, "--by", "MODEL", "--combine", "sum"], "expected min, last, product or mean"),
        (["--best-of", 4, "--by", "runs/nowhere"], "--by: there is no run"),
    ],
)
def test_bad_options_are_one_line(runs: tuple[Path, Path, Path], words: list[Any], line: str) -> None:
    answer = vigneron("eval", runs[0], *(runs[1] if word == "MODEL" else word for word in words))
    assert answer.code == 2
    assert line in answer.err
