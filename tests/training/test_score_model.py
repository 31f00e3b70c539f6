"""A reward model of people's scores: it learns them, says how well, and takes its place in a rubric."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.judged_data import score_config, score_rows
from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.rewards.rubric_build import build_rubric_reward
from vigneron.training.setup.resolve import newest_weights


@pytest.mark.slow
def test_it_learns_scores_and_is_an_item_of_a_rubric(tmp_path: Path, tiny_folder: Path) -> None:
    trained = api.train(score_config(tmp_path, tiny_folder, score_rows("say {}:")), name="scores", runs=tmp_path)
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["eval/loss"] > 0.6
    assert records[-1]["eval/loss"] < 0.2
    assert records[-1]["eval/accuracy"] == 1.0
    assert api.load_run(trained.folder).evaluate()["accuracy"] == 1.0
    item = {"name": "liked", "description": "People like it.", "flow": "reward_model", "model": str(trained.folder)}
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(yaml.safe_dump({"category_column": None, "categories": {"words": {"items": [item]}}}))
    options = check_config(
        {
            "method": {"name": "grpo"},
            "group_size": 2,
            "data": {"task": "antonyms"},
            "reward": {"kind": "rubric", "file": str(rubric)},
        },
        "tiny",
    ).reward
    reward = build_rubric_reward(options, weights=newest_weights)  # type: ignore[arg-type]
    good, bad = reward(prompts=["name hot:"] * 2, completions=[" hot.", " hot!"])
    assert good is not None
    assert bad is not None
    assert good > 0.7
    assert bad < 0.3


@pytest.mark.parametrize("score", [7, -0.1, "good", None])
def test_a_score_is_a_number_from_0_to_1(tmp_path: Path, tiny_folder: Path, score: Any) -> None:
    bad = score_rows("say {}:")
    bad[2]["score"] = score
    with pytest.raises(UserError, match=r"row 3"):
        api.train(score_config(tmp_path, tiny_folder, bad), runs=tmp_path)
