"""PGSRM's reward: the formula by hand, and the reward of texts on real embedders."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.rewards.semantic import SemanticReward, contrastive_reward, similarity_reward
from vigneron.sources.embedders import Embedder, load_embedder
from vigneron.sources.embedding_cache import CachedEmbedder

FORMS = ["clip", "shift", "euclidean"]

# Cosines with (3, 4): 1; 24/25; 0; −1; and two rows of other lengths.
PARENT = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [30.0, 40.0]], dtype=torch.float64)
CHILD = torch.tensor([[3.0, 4.0], [4.0, 3.0], [4.0, -3.0], [-3.0, -4.0], [0.4, 0.3]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("form", "alpha", "wanted"),
    [
        ("clip", 1.0, [1, 0.96, 0, 0, 0.96]),
        ("clip", 4.0, [1, 0.96**4, 0, 0, 0.96**4]),
        ("shift", 1.0, [1, 0.98, 0.5, 0, 0.98]),
        ("shift", 4.0, [1, 0.98**4, 0.0625, 0, 0.98**4]),
        # p̂ = (0.6, 0.8) and ĉ = (0.8, 0.6) are √0.08 apart, orthogonal ones √2, opposite ones 2.
        ("euclidean", 4.0, [1, 1 - math.sqrt(0.08), 1 - math.sqrt(2), -1, 1 - math.sqrt(0.08)]),
    ],
)
def test_similarity_reward_by_hand(form: str, alpha: float, wanted: list[float]) -> None:
    assert similarity_reward(PARENT, CHILD, alpha=alpha, form=form).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_default_is_the_papers_clip_with_alpha_4() -> None:
    assert torch.equal(similarity_reward(PARENT, CHILD), similarity_reward(PARENT, CHILD, alpha=4.0, form="clip"))


def test_a_zero_row_has_cosine_zero_and_a_nan_row_is_missing() -> None:
    parent = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [math.nan, 1.0], [1.0, 0.0], [1.0, 0.0]])
    child = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, math.nan], [1.0, 0.0]])
    clip, shift, euclidean = (similarity_reward(parent, child, alpha=2.0, form=form) for form in FORMS)
    assert clip[:3].tolist() == [0, 0, 0]
    assert shift[:3].tolist() == [0.25, 0.25, 0.25]  # ((0 + 1) / 2)²
    for rewards in (clip, shift, euclidean):
        assert rewards.isnan().tolist() == [False, False, False, True, True, False]
        assert rewards[5] == 1  # a missing neighbour spoils nothing


@pytest.mark.parametrize("alpha", [0.99, 0.0, -1.0, math.nan])
@pytest.mark.parametrize("form", FORMS)
def test_alpha_below_one_is_refused(alpha: float, form: str) -> None:
    with pytest.raises(ValueError, match="alpha must be at least 1"):
        similarity_reward(PARENT, CHILD, alpha=alpha, form=form)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be"):
        similarity_reward(PARENT, CHILD, form="cosine")


vectors = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3), min_size=4, max_size=4)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None)
@given(parent=vectors, child=vectors, scales=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)))
def test_the_reward_knows_direction_alone_is_symmetric_and_stays_in_range(
    form: str, parent: list[list[float]], child: list[list[float]], scales: tuple[float, float]
) -> None:
    p, c = torch.tensor(parent, dtype=torch.float64), torch.tensor(child, dtype=torch.float64)
    keep = torch.minimum(p.norm(dim=1), c.norm(dim=1)) > 1e-3  # not what normalising takes for zero
    p, c = p[keep], c[keep]
    rewards = similarity_reward(p, c, alpha=2.0, form=form)
    torch.testing.assert_close(similarity_reward(scales[0] * p, scales[1] * c, alpha=2.0, form=form), rewards)
    torch.testing.assert_close(similarity_reward(c, p, alpha=2.0, form=form), rewards)
    lowest = -1.0 if form == "euclidean" else 0.0
    assert ((rewards >= lowest) & (rewards <= 1)).all()


@pytest.mark.parametrize("form", FORMS)
def test_rounding_does_not_leave_the_range(form: str) -> None:
    vectors = torch.randn(5000, 7, generator=torch.Generator().manual_seed(0))
    both = torch.cat([similarity_reward(vectors, sign * vectors, form=form) for sign in (1, -1)])
    assert both.max() <= 1
    assert both.min() >= (-1 if form == "euclidean" else 0)


class CountingEmbedder:
    """Wraps an embedder and remembers every text it was asked for."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self.inner = embedder
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.asked += texts
        return self.inner.embed(texts)


@pytest.fixture(scope="module", params=["wordllama", "minilm"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return load_embedder(request.param)


def test_rewards_of_texts_on_a_real_embedder(embedder: Embedder) -> None:
    counting = CountingEmbedder(embedder)
    reward = SemanticReward(CachedEmbedder(counting), alpha=2.0)
    answers = ["purple", "purple", "purple", None, "purple", "purple"]
    completions = ["purple", "Purple!\n", "", "purple", "violet", "an old truck"]
    got = reward(prompts=["p"] * 6, completions=completions, completion_ids=[[1]] * 6, answer=answers, other=[0] * 6)
    assert got[0] == pytest.approx(1, abs=1e-5)
    assert got[1] == got[0]  # only letters count
    assert got[2] == 0.0  # an empty completion is a genuine score
    assert got[3] is None  # a missing answer is not
    assert 1 > got[4] > got[5] >= 0

    # Each text once, and a later call asks only for what is new.
    assert sorted(counting.asked) == ["", "an old truck", "purple", "violet"]
    again = reward(prompts=["p"] * 2, completions=["violet", "red"], answer=["purple", "purple"])
    assert again[0] == got[4]
    assert counting.asked[4:] == ["red"]

    messages = [[{"role": "assistant", "content": text}] for text in completions]
    assert reward(prompts=[[{"role": "user", "content": "p"}]] * 6, completions=messages, answer=answers) == got

    # The number itself, from the embeddings.
    p, v = embedder.embed(["purple", "violet"]).double()
    cosine = float(p @ v / (p.norm() * v.norm()))
    assert got[4] == pytest.approx(cosine**2, rel=1e-4)


class TableEmbedder:
    """Vectors by hand; what is not in the table has none (NaN)."""

    name = "table"

    def __init__(self, table: dict[str, tuple[float, float]]) -> None:
        self.table = table

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([self.table.get(text, (math.nan, math.nan)) for text in texts])


def test_alpha_form_and_clean_reach_the_formula_and_nan_is_missing() -> None:
    table = TableEmbedder({"a": (3.0, 4.0), "b": (4.0, 3.0), "B!": (4.0, -3.0)})

    def score(completion: str, **options: object) -> float | None:
        return SemanticReward(table, **options)(["p"], [completion], answer=["a"])[0]

    assert score("B!") == pytest.approx(0.96**4)
    assert score("B!", alpha=1.0) == pytest.approx(0.96)
    assert score("B!", alpha=1.0, form="shift") == pytest.approx(0.98)
    assert score("B!", alpha=1.0, form="shift", clean="none") == pytest.approx(0.5)
    assert score("unknown") is None


def test_without_any_answer_nothing_is_embedded() -> None:
    counting = CountingEmbedder(TableEmbedder({}))
    assert SemanticReward(counting)(["p", "p"], ["a", "b"], answer=[None, None]) == [None, None]
    assert counting.asked == []


def test_the_contrastive_reward_by_hand() -> None:
    """Cosines 1 with the parent, 0 and −1 with two negatives, at temperature 0.5: e² / (e² + 1 + e⁻²)."""
    parent = child = torch.tensor([[2.0, 0.0]])
    negatives = torch.tensor([[[0.0, 3.0], [-1.0, 0.0]]])
    wanted = math.exp(2) / (math.exp(2) + 1 + math.exp(-2))
    assert contrastive_reward(parent, child, negatives, temperature=0.5).item() == pytest.approx(wanted)
    zero = contrastive_reward(parent, torch.zeros(1, 2), negatives, temperature=0.5)
    assert zero.item() == pytest.approx(1 / 3), "a zero row has cosine 0 with all three"


def test_what_is_missing_in_the_contrastive_reward() -> None:
    parent, child = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([[1.0, 0.0]] * 4)
    negatives = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]] * 4)
    negatives[0, 1] = torch.nan
    negatives[1] = torch.nan
    child[2], parent[3] = torch.nan, torch.nan
    rewards = contrastive_reward(parent, child, negatives, temperature=1.0)
    assert rewards[0].item() == pytest.approx(math.e / (math.e + 1)), "one negative is left"
    assert rewards[1:].isnan().all()
