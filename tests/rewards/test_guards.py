"""Guards of the semantic reward, with vectors whose cosines are known."""

from pathlib import Path

import pytest
import torch

from vigneron.rewards.semantic import Guards, SemanticReward
from vigneron.sources.embedders import WordVectors

VECTORS = "4 2\nhot 1 0\ncold 0.6 0.8\nicy 0 1\nwarm 0.8 0.6\n"


@pytest.fixture
def words(tmp_path: Path) -> WordVectors:
    file = tmp_path / "vectors.txt"
    file.write_text(VECTORS)
    return WordVectors.numberbatch(file)


def reward(embedder: WordVectors, completions: list[str], **guards: object) -> list[float | None]:
    built = SemanticReward(embedder, alpha=1.0, guards=Guards(**guards))  # type: ignore[arg-type]
    many = len(completions)
    return built(["p"] * many, completions, answer=["cold"] * many, input=["hot"] * many)


def test_without_guards_the_input_changes_nothing(words: WordVectors) -> None:
    assert reward(words, ["icy", "hot"]) == [pytest.approx(0.8), pytest.approx(0.6)]


def test_similarity_to_the_input_is_subtracted_and_the_rest_is_not_below_zero(words: WordVectors) -> None:
    # icy: 0.8 − ½ · 0; hot (an echo): 0.6 − ½ · 1; warm: (0.6·0.8 + 0.8·0.6) − ½ · 0.8 = 0.96 − 0.4.
    assert reward(words, ["icy", "hot", "warm"], input_weight=0.5) == pytest.approx([0.8, 0.1, 0.56])
    assert reward(words, ["hot"], input_weight=1.0) == [0.0]


def test_too_long_or_too_repetitive_earns_nothing(words: WordVectors) -> None:
    assert reward(words, ["cold", "cold icy", "cold icy icy"], max_length_ratio=2.0)[2] == 0.0
    assert reward(words, ["cold icy"], max_length_ratio=2.0)[0] > 0
    assert reward(words, ["cold cold"], max_repetition=0.4) == [0.0]
    assert reward(words, ["cold cold"], max_repetition=0.5) == [pytest.approx(1.0)]


def test_guards_count_the_letters_of_scripts_without_spaces(words: WordVectors) -> None:
    guards = Guards(max_length_ratio=2.0, max_repetition=0.5)
    scores = guards.gated(torch.ones(3), ["好" * 4, "今天很好", "今天"], ["是好", "是", "是"])
    assert scores.tolist() == [0.0, 0.0, 1.0]  # ¾ repeated; four times as long


def test_of_two_embedders_the_smaller_reward_counts(words: WordVectors, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("2 2\ncold 1 0\nicy 0.6 0.8\n")
    second = WordVectors.numberbatch(other)
    assert reward(words, ["icy", "cold"], second=second) == pytest.approx([0.6, 1.0])


def test_a_missing_answer_stays_missing(words: WordVectors) -> None:
    built = SemanticReward(words, guards=Guards(max_length_ratio=1.0))
    assert built(["p"], ["cold cold cold"], answer=[None], input=["hot"]) == [None]


def test_the_similarity_to_the_input_is_logged(words: WordVectors) -> None:
    logged = {}
    built = SemanticReward(words, alpha=1.0)
    built(["p"] * 2, ["hot", "icy"], answer=["cold"] * 2, input=["hot"] * 2, log_metric=logged.__setitem__)
    assert logged == {"input_similarity": pytest.approx(0.5)}


def test_a_failed_embedding_stays_missing_behind_every_guard(words: WordVectors) -> None:
    class Failing:
        name = "failing"

        def embed(self, texts: list[str]) -> torch.Tensor:
            vectors = words.embed(texts)
            vectors[[text == "icy" for text in texts]] = torch.nan
            return vectors

    guards = Guards(input_weight=0.5, max_length_ratio=1.0, max_repetition=0.0)
    built = SemanticReward(Failing(), alpha=1.0, guards=guards)
    asked = {"answer": ["cold"] * 3, "input": ["hot"] * 3}
    assert built(["p"] * 3, ["icy", "cold", "warm warm"], **asked) == [None, pytest.approx(0.7), 0.0]
    second = SemanticReward(words, alpha=1.0, guards=Guards(second=Failing()))
    assert second(["p"] * 3, ["icy", "cold", "warm"], **asked)[0] is None


def test_an_echo_is_subtracted_by_the_embedder_that_saw_it(words: WordVectors, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("3 2\ncold 1 0\nicy 0.6 0.8\nhot 0.6 0.8\n")
    second = WordVectors.numberbatch(other)
    # icy by the first: 0.8 − ½ · 0 = 0.8; by the second: 0.6 − ½ · 1 = 0.1.
    assert reward(words, ["icy"], second=second, input_weight=0.5) == [pytest.approx(0.1)]


def test_without_an_input_the_prompt_is_what_may_be_echoed(words: WordVectors) -> None:
    built = SemanticReward(words, alpha=1.0, guards=Guards(input_weight=0.5))
    assert built(["hot"], ["hot"], answer=["cold"]) == [pytest.approx(0.1)]
    assert built(["hot"], ["hot"], answer=["cold"], input=[None]) == [pytest.approx(0.1)]
