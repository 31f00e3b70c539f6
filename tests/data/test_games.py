"""The rows of the games: the same on every machine, prompts as conversations, warm-up plays."""

import hashlib
import json

import pytest

from vigneron.data.games import TASKS
from vigneron.data.task import Task
from vigneron.data.tasks import load_task

DIGESTS = {
    "sums": "c1fcc301f83e0eea",
    "guess-8": "36bd0cb7106ed53d",
    "guess-16": "6a9b465075530e03",
    "guess-32": "59ffdeba8cc55fc6",
    "maze-4": "5811adf541cbf71b",
    "maze-5": "c16f76385bb0b935",
    "maze-6": "e67bfb491356e76f",
    "sums-tool": "0c900b08a6adc363",
    "nim": "2c4ae739d9a7ac3c",
    "guess-8-warmup": "3284819541bddc12",
    "guess-16-warmup": "56451d08785f537e",
    "guess-32-warmup": "1648b2984589f97b",
    "maze-4-warmup": "da4c08ec6a298916",
    "maze-5-warmup": "c641b87239df72cf",
    "maze-6-warmup": "b79fd8a4c2f4dd5a",
    "sums-tool-warmup": "3ae70f2f3f818b1c",
    "nim-warmup": "75a4eff84bd57677",
}
GAMES = [task for task in TASKS if not task.name.endswith("-warmup")]
SPLITS = ("train", "tuning", "held_out")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_rows_are_the_same_on_every_machine(task: Task) -> None:
    rows = [task.rows(split) for split in SPLITS]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == DIGESTS[task.name]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_prompt_is_a_conversation_and_every_answer_a_text(task: Task) -> None:
    for split in SPLITS:
        for row in task.rows(split):
            assert [message["role"] for message in row["prompt"]][::2] == ["user"] * ((len(row["prompt"]) + 1) // 2)
            assert isinstance(row["answer"], str)
            assert "play" not in row


@pytest.mark.parametrize("task", GAMES[1:], ids=lambda task: task.name)
def test_warm_up_rows_begin_as_the_games_and_only_those_to_train_on_are_plays(task: Task) -> None:
    warm = load_task(f"{task.name}-warmup")
    for split in ("tuning", "held_out"):
        assert warm.rows(split) == task.rows(split)
    begins = {game["prompt"][0]["content"] for game in task.rows("train")}
    for row in warm.rows("train"):
        assert row["messages"][0]["content"] in begins or task.name == "nim"  # its second player begins later
        assert row["messages"] == [*row["prompt"], {"role": "assistant", "content": row["answer"]}]


def test_a_template_rewords_games_and_plays() -> None:
    for name in ("sums-tool", "sums-tool-warmup"):
        row = load_task(name).rows("train", "Add {terms}")[0]
        assert row["prompt"][0] == {"role": "user", "content": f"Add {row['terms']}"}


def test_sums_with_and_without_a_calculator_are_the_same_sums() -> None:
    for split in SPLITS:
        pairs = zip(load_task("sums").rows(split), load_task("sums-tool").rows(split), strict=True)
        assert all(one["terms"] == other["terms"] and one["prompt"] != other["prompt"] for one, other in pairs)
