"""The guide's environment and recipe run as they stand there; so does its example of Nim."""

import json
import re
from pathlib import Path

import pytest

from support.talking import talking_folder
from vigneron import api
from vigneron.data import guess
from vigneron.data.games import TASKS
from vigneron.recipe import recipe_names
from vigneron.yaml_text import parse_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "environments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.S)


@pytest.mark.slow
def test_the_first_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, code), (_, recipe) = BLOCKS[:2]
    row = next(line for line in PAGE.splitlines() if line.startswith('    {"prompt"'))
    (tmp_path / "spelling.py").write_text(code)
    (tmp_path / "spelling.yaml").write_text(recipe)
    (tmp_path / "words.jsonl").write_text(f"{row.strip()}\n")
    assert json.loads(row)["word"] == "lamp"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = {"name": str(talking_folder(tmp_path / "model")), "device": "cpu"}
    run = api.train("spelling.yaml", runs=tmp_path / "runs", model=model, steps=1, save_every=0)
    (record,) = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert 1 <= record["turns/mean"] <= 4
    assert record["turns/failed"] == 0


def test_an_environment_takes_ten_lines() -> None:
    code = [line for line in BLOCKS[0][1].splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) == 9


def test_the_example_of_nim(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [text for kind, text in BLOCKS if kind == "python" and "Nim" in text]
    exec(code, {})
    optimal, decisive, illegal = map(float, capsys.readouterr().out.split())
    assert 0 < decisive < optimal < 1
    assert illegal == pytest.approx(
        1 - 60 / 119
    )  # two or three stones are left of the first pile in 2 · 5 · 6 positions


def test_what_it_says_of_binary_search_and_names() -> None:
    numbers = [f"{guess.best_mean_reward(width):.2f}" for width in guess.WIDTHS]
    assert f"{numbers[0]}, {numbers[1]} and {numbers[2]} on" in " ".join(PAGE.split())
    named = set(re.findall(r"`((?:sft|env)-[\w-]+)`", PAGE))
    assert named <= set(recipe_names())
    assert set(re.findall(r"`((?:guess|maze|sums)(?:-[\w]+)?)`", PAGE)) <= {task.name for task in TASKS}


def test_its_recipes_are_yaml() -> None:
    for kind, text in BLOCKS:
        if kind == "yaml":
            assert "environment" in parse_yaml(text, "the guide")
