"""Guards of the semantic reward, with vectors whose cosines are known."""

from pathlib import Path

import pytest

from vigneron.rewards.guards import Guards
from vigneron.rewards.semantic import SemanticReward
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
