"""The guide's game and recipe run as they stand there; so do its scenes, and what it says of names and numbers."""

import json
import re
from pathlib import Path

import pytest

from support.talking import talking_folder
from vigneron import api
from vigneron.data.tasks import load_task
from vigneron.recipe import recipe_names
from vigneron.selfplay.scenes import Scenes, read_scenes
from vigneron.yaml_text import parse_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "self-play.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.S)


def test_the_first_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, code), (_, recipe) = BLOCKS[:2]
    row = next(line for line in PAGE.splitlines() if line.startswith('    {"prompt"'))
    (tmp_path / "undercut.py").write_text(code)
    (tmp_path / "undercut.yaml").write_text(recipe)
    (tmp_path / "rules.jsonl").write_text(f"{row.strip()}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = {"name": str(talking_folder(tmp_path / "model")), "device": "cpu"}
    run = api.train("undercut.yaml", runs=tmp_path / "runs", model=model, steps=1, save_every=0)
    (record,) = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert record["turns/failed"] == 0
    assert record["roles/left/reward"] == -record["roles/right/reward"]


def test_its_game_by_hand() -> None:
    space: dict[str, object] = {}
    exec(BLOCKS[0][1], space)
    cases = [("9", "3", 1), ("9", "8", -1), (" 4 ", "5", 1), ("7", "7", 0), ("no", "1", -1), ("²", "x", 0)]
    for left, right, won in cases:
        game = space["Undercut"]({"rule": "?"}, 0)  # type: ignore[operator]
        assert set(game.start().to_play) == {"left", "right"}
        assert game.play({"left": left, "right": right}).rewards == {"left": won, "right": -won}


def test_a_game_takes_about_twenty_lines() -> None:
    assert len([line for line in BLOCKS[0][1].splitlines() if line.strip() and not line.startswith("#")]) <= 20


def test_its_names_are_there() -> None:
    named = set(re.findall(r"vigneron train ([\w-]+)(?!\.)\b(?!\.yaml)", PAGE)) - {"undercut"}
    assert named == {"sft-debate", "debate-sums", "consultancy-sums", "sft-nim", "self-play-nim"}
    assert named <= set(recipe_names())
    rows = {split: len(load_task("nim-positions").rows(split)) for split in ("train", "tuning", "held_out")}
    assert rows == {"train": 87, "tuning": 15, "held_out": 215}
    lists = load_task("sum-lists").rows("train")[0]["shown"]
    assert lists.splitlines()[0] in PAGE


def test_its_scenes_are_read() -> None:
    (text,) = [text for kind, text in BLOCKS if kind == "yaml" and "characters" in text]
    scenes = Scenes.model_validate(parse_yaml(text, "the guide"))
    assert scenes.scenes[0].instruction == read_scenes("everyday").scenes[0].instruction
