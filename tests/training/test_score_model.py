"""A reward model of people's scores: it learns them, says how well, and takes its place in a rubric."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import tiny_recipe

from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.rewards.rubric_build import build_rubric_reward
from vigneron.training.setup.resolve import newest_weights

WORDS = ("hot", "cold", "big", "small", "up", "down", "wet", "dry")


def rows(prompt: str) -> list[dict[str, Any]]:
    """People like what ends in a full stop."""
    return [
        {"prompt": prompt.format(word), "completion": f" {word}{end}", "score": score}
        for word in WORDS
        for end, score in ((".", 1.0), ("!", 0.0))
    ]


def config(tmp_path: Path, model: Path, train: list[dict[str, Any]], **changes: Any) -> Any:
    paths = [tmp_path / name for name in ("train.jsonl", "held-out.jsonl")]
    for path, some in zip(paths, (train, rows("name {}:")), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    given = tiny_recipe(
        model,
        paths[0],
        method={"name": "score_model"},
        optimizer={"actor_lr": 3e-3},
        steps=40,
        prompts_per_step=16,
        eval_every=20,
        save_every=0,
        **changes,
    )
    given["data"] = {"train": str(paths[0]), "held_out": str(paths[1])}
    for key in ("reward", "group_size", "max_new_tokens"):
        given.pop(key)
    return check_config(given, "tiny")


def test_it_learns_scores_and_is_an_item_of_a_rubric(tmp_path: Path, tiny_folder: Path) -> None:
    trained = api.train(config(tmp_path, tiny_folder, rows("say {}:")), name="scores", runs=tmp_path)
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
    bad = rows("say {}:")
    bad[2]["score"] = score
    with pytest.raises(UserError, match=r"row 3"):
        api.train(config(tmp_path, tiny_folder, bad), runs=tmp_path)
