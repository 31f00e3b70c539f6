"""Flow balance: flows by hand; the balanced policy samples in proportion to the scores; a run that resumes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.resuming import TrainedOnce, check_third_arm, lose_optimizers
from support.tiny_runs import demonstrated_config
from vigneron import api
from vigneron.core.flows import flow_balance, log_transition_flows
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder


def test_flows_by_hand() -> None:
    """Texts 1-2, 1-3 and 4 with scores 1, 2 and 1: behind 1 lie 3 of 4; of these 2/3 behind 3."""
    flows = log_transition_flows([(1, 2), (1, 3), (4,)], [1.0, 2.0, 1.0])
    shares = [[math.exp(x) for x in row] for row in flows]
    assert shares == [pytest.approx([0.75, 1 / 3]), pytest.approx([0.75, 2 / 3]), pytest.approx([0.25])]


def test_a_text_that_occurs_twice_counts_once() -> None:
    assert log_transition_flows([(1,), (1,), (2,)], [1.0, 9.0, 1.0])[0] == pytest.approx([math.log(0.5)])


texts = st.lists(st.lists(st.integers(1, 3), max_size=4).map(lambda t: (*t, 0)), min_size=1, max_size=8, unique=True)


@given(texts, st.data())
def test_the_balanced_policy_samples_in_proportion(texts: list[tuple[int, ...]], data: st.DataObject) -> None:
    """The product of a text's shares is its score over the sum of all, for every tree of ended texts."""
    scores = data.draw(st.lists(st.floats(0.01, 1), min_size=len(texts), max_size=len(texts)))
    for flows, score in zip(log_transition_flows(texts, scores), scores, strict=True):
        assert sum(flows) == pytest.approx(math.log(score / sum(scores)), abs=1e-9)


def test_the_loss_by_hand() -> None:
    logprobs = torch.tensor([[math.log(0.5), math.log(0.25)]], requires_grad=True)
    losses = flow_balance(logprobs, torch.tensor([[math.log(0.5), 0.0]]))
    assert losses.tolist() == [pytest.approx([0.0, math.log(4) ** 2])]


def flower_config(place: Path, model: Path, **changes: Any) -> Any:
    rows = [
        {"prompt": "colour: ", "completion": text, "score": score}
        for text, score in (("red", 1.0), ("rose", 1.0), ("green", 0.5), ("blue", 0.5))
    ]
    return demonstrated_config(place, model, rows, **{"method": {"name": "flower"}, **changes})


@pytest.mark.slow
def test_a_run_learns_and_its_optimizer_is_a_part_of_its_state(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce
) -> None:
    whole = trained_once("flower", lambda place: flower_config(place, tiny_folder))
    records = RunFolder(whole).metrics()
    assert records[-1]["eval/loss/flow"] < records[0]["eval/loss/flow"] / 2
    check_third_arm(whole, tmp_path, lose_optimizers)


@pytest.mark.slow
def test_a_run_samples_in_proportion_to_the_scores(tmp_path: Path, tiny_folder: Path) -> None:
    run = api.train(flower_config(tmp_path, tiny_folder, steps=150, eval_every=0, save_every=0), runs=tmp_path)
    texts = run.sample(["colour: "] * 400, temperature=1.0, max_new_tokens=8)
    shares = {word: sum(text.strip() == word for text in texts) / 400 for word in ("red", "rose", "green", "blue")}
    assert shares == pytest.approx({"red": 1 / 3, "rose": 1 / 3, "green": 1 / 6, "blue": 1 / 6}, abs=0.1)


@pytest.mark.parametrize("part", ["train", "held-out"])
def test_a_score_of_0_is_refused(tmp_path: Path, tiny_folder: Path, part: str) -> None:
    config = flower_config(tmp_path, tiny_folder)
    (tmp_path / f"{part}.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b", "score": 0.0}) + "\n")
    with pytest.raises(
        UserError, match=rf"{part}\.jsonl', row 1: score is 0, and `method: flower` samples in proportion"
    ):
        api.train(config, runs=tmp_path)
