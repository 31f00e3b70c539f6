"""The table of what PGSRM's reward pays: its made-up answers, and their rewards by hand."""

import math
from collections.abc import Sequence
from statistics import pstdev

import pytest
import torch
from benchmarks.graded_rewards import KINDS, Answer, cell, half_of, lines, made_up, paid_for, recipe_of
from torch import Tensor

from vigneron.recipe import load_config

ROWS = [{"prompt": f"p{i}", "input": f"in {i}", "answer": text} for i, text in enumerate(["cold", "cold", "dry tea"])]


class Angles:
    """Texts as unit vectors: `cold` at 0°, others at the name's own angle."""

    def __init__(self, name: str, degrees: float) -> None:
        self.name, self._degrees = name, degrees

    def embed(self, texts: Sequence[str]) -> Tensor:
        angles = [0.0 if text == "cold" else math.radians(self._degrees) for text in texts]
        return torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])


EMBEDDERS = {"lexical": Angles("lexical", 60.0), "minilm": Angles("minilm", 45.0)}


def test_half_an_answer() -> None:
    assert half_of("dry tea", "cold") == "dry"
    assert half_of("one two three", "cold") == "one"
    assert half_of("dry", "cold") == "dry cold", "one word has no half"


def test_made_up_answers() -> None:
    made = made_up(ROWS, echoes=True)
    texts = {kind: [one.text for one in made[kind]] for kind in KINDS}
    assert texts["wrong"] == ["dry tea", "dry tea", "cold"], "never a row's own"
    assert texts["right"] == ["cold", "cold", "dry tea"]
    assert texts["half right"] == ["cold dry tea", "cold dry tea", "dry"]
    assert texts["echo"] == ["in 0", "in 1", "in 2"]
    assert made_up(ROWS, echoes=False)["echo"] == []


def test_rewards_by_hand() -> None:
    """cos 60° = ½, ¼ and 1/16 with α = 2 and 4; of cos 45° and ½ the lower is ½. A cut text of eight words for one has
    half of it."""
    wrong = [Answer(ROWS[0], "hot")]
    assert paid_for(wrong, EMBEDDERS, "lexical") == pytest.approx([1 / 2, 1 / 4, 1 / 16])
    assert paid_for(wrong, EMBEDDERS, "minilm") == pytest.approx([0.5**0.5, 1 / 2, 1 / 4])
    assert paid_for(wrong, EMBEDDERS, "the lower of both") == pytest.approx([1 / 2, 1 / 4, 1 / 16])
    assert paid_for([Answer(ROWS[0], "hot " * 8, cut=True)], EMBEDDERS, "lexical")[0] == pytest.approx(1 / 4)


def test_a_spread_by_hand() -> None:
    """1 and ½ with α = 1: a standard deviation of ¼."""
    both = [Answer(ROWS[0], "cold"), Answer(ROWS[0], "hot")]
    assert paid_for(both, EMBEDDERS, "lexical", pstdev) == pytest.approx([1 / 4, 3 / 8, 15 / 32])


def test_the_table() -> None:
    assert cell([1.0, 1.0, 1.0]) == "1.00"
    assert cell([0.5, 0.02, 0.00031]) == "0.50 / 0.02 / 0.0003"
    assert cell([1e-7, 3e-8, 0.0]) == "0", "rounding"
    right = {kind: [Answer(ROWS[0], "cold")] if kind == "right" else [] for kind in KINDS}
    assert [*lines({"mine": right}, EMBEDDERS)][:3] == [
        "| answers | embedder | right |",
        "|---|---|---|",
        "| mine | lexical | 1.00 |",
    ]


@pytest.mark.parametrize("task", ["antonyms", "colors", "opposites-4", "sentiment", "instructions"])
def test_every_task_has_a_recipe(task: str) -> None:
    recipe, changes = recipe_of(task)
    assert load_config(recipe, changes).data.task == task
