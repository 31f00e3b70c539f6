"""Model cards: in every checkpoint and its manifest, with what the Hub reads, and nothing of the machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.commands.methods import METHODS
from vigneron.recipe import load_config, recipe_names
from vigneron.training.checkpoint.read import check_manifest
from vigneron.training.model_card import ABOUT_REWARD, Rows, model_card, without_paths

METRICS = [
    {"step": 0, "eval/accuracy": 0.25},
    {"step": 1, "reward": 0.5, "entropy": 2.0},
    {"step": 2, "reward": 0.75, "entropy": 1.0, "eval/accuracy": 0.625},
    {"step": 3, "reward": 0.99},
]


def card_of(config: Any, **changes: Any) -> str:
    options = {"step": 2, "rows": Rows(10, 4), "base_hash": "abc123", "versions": {"torch": "2"}}
    return model_card(config, METRICS, **options | changes)


def front_of(card: str) -> dict[str, Any]:
    first, front, _ = card.split("---\n", 2)
    assert first == ""
    return yaml.safe_load(front)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_card(name: str) -> None:
    config = load_config(name)
    card = card_of(config)
    front = front_of(card)
    assert front["tags"][0] == "vigneron"
    assert front["pipeline_tag"] == ("text-classification" if config.method.trains == "scorer" else "text-generation")
    for heading in ("Base model", "Data", "How it was trained", "Metrics", "Limits", "Versions", "Papers", "Config"):
        assert f"\n## {heading}\n\n" in card
    assert "10 " in card
    assert config.method.card in card


def test_every_method_and_reward_has_its_words() -> None:
    assert all(of.card and of.description for of in METHODS.values())
    kinds = {"semantic", "token_f1", "probability", "binary", "python", "model", "preference", "process", "rubric"}
    assert set(ABOUT_REWARD) == {*kinds, "combined", "environment"}


def test_figures_are_those_up_to_the_step() -> None:
    card = card_of(load_config("demo"))
    assert "| held-out accuracy | 0.250 | 0.625 |" in card
    assert "| reward | 0.500 | 0.750 |" in card
    assert "0.99" not in card


def test_the_hub_is_told_of_the_base_and_of_an_adapter() -> None:
    front = front_of(card_of(load_config("demo")))
    assert front["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (front["library_name"], front["base_model_relation"]) == ("transformers", "finetune")
    lora = load_config("demo", ["model.lora={rank: 4}", "model.name=org/some-model"])
    front = front_of(card_of(lora))
    assert (front["base_model"], front["library_name"]) == ("org/some-model", "peft")
    assert front["base_model_relation"] == "adapter"
    assert front_of(card_of(lora, merged=True))["library_name"] == "transformers"


def test_nothing_of_the_machine_stands_in_it() -> None:
    secret = "/home/somebody/my secret folder"
    config = load_config(
        "demo",
        [f"model.name={secret}/child", f"data={{train: {secret}/rows.jsonl}}", f"reward.embedder={secret}/embedder"],
    )
    config = config.model_copy(update={"about": "``` <script>| x"})
    card = card_of(config)
    assert "somebody" not in card
    assert "secret folder" not in card
    assert "base_model" not in front_of(card)
    assert "A local model, `child`" in card
    assert "rows.jsonl" in card
    assert "<script>" not in card.partition("## Config")[0]
    assert card.count("```") == 2
    assert without_paths(["http://10.0.0.7:8000/v1", "~/x/y", "a/b", 3]) == ["http://…", "…/y", "a/b", 3]


def test_a_checkpoint_has_its_card_in_its_manifest(tmp_path: Path, tiny_folder: Path) -> None:
    model = {"name": str(tiny_folder), "device": "cpu", "lora": {"rank": 2}}
    config = tiny_config(
        tiny_folder, write_data(tmp_path), model=model, reward={"kind": "binary"}, steps=2, eval_every=1, save_every=1
    )
    run = api.train(config, name="run", runs=tmp_path).folder
    for step in (1, 2):
        path = run / "checkpoints" / f"step-{step}"
        check_manifest(path)
        assert "README.md" in json.loads((path / "manifest.json").read_text())
        card = (path / "README.md").read_text(encoding="utf-8")
        assert f"# tiny, step {step}\n" in card
        assert "10 prompts to train on, 10 held out" in card
        assert "| held-out accuracy | 0.000 |" in card
        assert front_of(card)["library_name"] == "peft", "ours, not peft's own"
        assert str(tmp_path) not in card
        assert str(tiny_folder.parent) not in card
