"""The recipes of the games: they fit their tasks and environments, and train and evaluate, here with a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from support.talking import talking_model
from vigneron import api
from vigneron.data.tasks import load_task
from vigneron.policy.bundled import bundled_model_folder
from vigneron.policy.reply_tokens import reply_ids
from vigneron.recipe import load_config

GAMES = ("guess", "maze", "sums-tool")
TINY = {"steps": 1, "prompts_per_step": 2, "eval_every": 1, "save_every": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for a whole game, byte by byte."""
    place = tmp_path_factory.mktemp("tiny")
    model, tokenizer = talking_model(positions=2048)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize("game", GAMES)
def test_a_conversation_has_as_many_turns_as_its_game(game: str) -> None:
    for name in (f"sft-{game}", f"env-{game}"):
        config = load_config(name, keys={"model": {"name": "smollm2-135m"}})
        assert config.environment is not None
        rows = load_task(str(config.data.task)).rows("held_out") + load_task(str(config.data.task)).rows("train")
        most = max(row.get("turns", 4) for row in rows)
        assert config.environment.max_turns == most
    assert load_config(f"env-{game}", keys={"model": {"name": "x"}}).model.name == "x"


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("game", GAMES)
def test_a_warm_up_and_a_game_train_and_are_evaluated_by_whole_games(game: str, folder: Path, tmp_path: Path) -> None:
    environment = {"max_turns": 2, "max_reply_tokens": 160}
    for name in (f"sft-{game}", f"env-{game}"):
        given = load_config(name, keys={"model": {"name": str(folder)}})
        keys: dict[str, Any] = {
            **TINY,
            "model": {"name": str(folder), "device": "cpu"},
            "environment": {**given.environment.model_dump(by_alias=True), **environment},
            "data": {"task": given.data.task, "held_out": "tuning"},
            "max_new_tokens": 4,
            **({"group_size": 2} if name.startswith("env") else {}),
        }
        run = api.train(name, runs=tmp_path / "runs", name=name, **keys)
        records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        last = records[-1]
        assert 0 <= last["eval/reward"] <= 1
        assert 0 <= last["eval/accuracy"] <= 1
        if name.startswith("env"):
            assert 1 <= last["turns/mean"] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["env-guess", "env-maze", "env-sums-tool", "self-play-nim"])
def test_turns_and_replies_fit_with_the_bundled_models_tokens(recipe: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bundled_model_folder("smollm2-135m"))
    config = load_config(recipe, keys={"model": {"name": "smollm2-135m"}})
    assert config.environment is not None
    for row in load_task(f"{config.data.task}-warmup").rows("train")[::7]:
        for at, message in enumerate(row["messages"][1:], start=1):
            if message["role"] == "assistant":
                assert len(tokenizer(message["content"]).input_ids) < config.max_new_tokens
            else:
                ids = reply_ids(tokenizer, row["messages"][:at], [message], tokenizer.eos_token_id)
                assert len(ids) <= config.environment.max_reply_tokens
