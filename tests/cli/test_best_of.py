"""Best-of-N: the sample that a model ranks first."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.command_line import vigneron
from support.judged_data import process_config
from support.small_batch import make_batch
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.commands.best_of import BestOf, best_of, ranked
from vigneron.core.intervals import wilson


def scored(scores: list[float]) -> Any:
    """A reward that is called with one group after the other, whose texts end in the samples' numbers."""

    def reward(prompts: list[str], completions: list[str]) -> list[float]:
        assert len(prompts) == 2
        return [scores[int(text.split()[-1])] for text in completions]

    return reward


def test_the_chosen_sample_by_hand() -> None:
    """Three prompts of two samples: right choice, wrong choice where one was right, nothing right."""
    scores = [0.1, 0.9, 0.7, 0.2, 0.5, 0.5]
    correct = (False, True, False, True, False, False)
    batch = make_batch([1] * 6, [1] * 6).with_signals(correct=correct, rewards_B=torch.zeros(6))
    got = ranked(batch, scored(scores), 2)
    assert (got.prompts, got.samples) == (3, 2)
    assert (got.accuracy, got.mean, got.passed) == pytest.approx((1 / 3, 2 / 6, 2 / 3))
    assert got.interval(1 / 3) == pytest.approx(wilson(1, 3))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_interval_of_all_or_nothing_has_a_width(share: float) -> None:
    """Wilson at 0 of n: from 0 to z² / (n + z²)."""
    low, high = BestOf(10, 2, share, share, share).interval(share)
    assert high - low == pytest.approx(1.96**2 / (10 + 1.96**2))


def test_groups_need_not_be_in_a_row() -> None:
    batch = make_batch([1] * 4, [1] * 4).with_signals(correct=(True, False, True, False), rewards_B=torch.zeros(4))
    got = ranked(batch.with_samples(group_B=torch.tensor([0, 1, 0, 1])), scored([0.9, 0.1, 0.2, 0.3]), 2)
    assert (got.accuracy, got.mean, got.passed) == (0.5, 0.5, 0.5)


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


@pytest.mark.slow
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


OWN_ROLLOUT = """
from vigneron.extend import SlotOptions

class Spelled(SlotOptions):
    pass

def spelled(parts, options: Spelled):
    def rollout(rows, step=0, first=0):
        batch = parts.default(rows, step, first)
        texts = (text[1:] for text in batch.samples.completions)
        return batch.with_samples(completions=tuple(f"not {text} x {text}" for text in texts))
    return rollout
"""


@pytest.mark.parametrize("own", [False, True], ids=["sees", "sees and rollout"])
def test_samples_are_drawn_and_checked_as_in_the_run(
    tmp_path: Path, obliging_folder: Path, runs: tuple[Path, Path, Path], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says `xy`: what follows `x` is `y`. The delimiter ` x ` occurs with the user's rollout alone."""
    (tmp_path / "own_rollout.py").write_text(OWN_ROLLOUT)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes: Any = {"rollout": {"name": "own_rollout:spelled"}} if own else {}
    made = tiny_config(
        obliging_folder,
        write_data(tmp_path),
        method={"name": "grpo"},
        optimizer={"actor_lr": 1e-9},
        sampling={"temperature": 0.01},
        reward={"kind": "binary", "sees": "answer", "delimiter": " x " if own else "x"},
        steps=1,
        eval_every=0,
        **changes,
    )
    run = api.train(made, name="run", runs=tmp_path).folder
    rows = [{"prompt": f"p{n} ", "answer": "y" if n else "xy"} for n in range(4)]
    got = best_of(run, str(runs[1]), 2, rows)
    assert (got.accuracy, got.mean, got.passed) == (0.75, 0.75, 0.75)
    labelled, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = vigneron("process", "label", run, labelled, "--out", out, "--temperature", 0.01)
    assert answer.code == 0, answer.err
    assert ("note: the run's own `rollout` cannot continue a solution" in answer.out) == own
    wanted = [False] * 4 if own else [False, True, True, True]
    assert [json.loads(line)["correct"] for line in out.read_text().splitlines()] == wanted
