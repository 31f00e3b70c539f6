"""Dense rewards: cleaning, the contrast, the guard of cut completions, token F1. Numbers worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vigneron.errors import UserError
from vigneron.methods.grpo import progress_notices
from vigneron.recipe import check_config, config_yaml, load_config
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import exact_reward, load_checker
from vigneron.rewards.semantic import Contrast, Guards, SemanticReward
from vigneron.rewards.token_f1 import token_f1_reward
from vigneron.run_data.readers import why_not_compared
from vigneron.sources.embedders import load_embedder
from vigneron.yaml_text import parse_yaml

ANGLES = {"hot": 0.0, "cold": 90.0, "wet": 180.0, "dry": 270.0, "icy": 60.0}


class Circle:
    """Words as unit vectors at known angles; an unknown text has none (NaN)."""

    name = "circle"

    def embed(self, texts: Sequence[str]) -> Tensor:
        angles = [math.radians(ANGLES[text]) if text in ANGLES else math.nan for text in texts]
        return torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles], dtype=torch.float64)


ROWS = [{"prompt": f"opposite of {i}", "answer": answer} for i, answer in enumerate(["cold", "wet", "dry", "Cold!"])]


def config_with(reward: dict[str, Any], *, stored: bool = False) -> Any:
    recipe = {"method": {"name": "grpo"}, "data": {"train": "rows.jsonl"}, "reward": reward, "group_size": 4}
    return check_config(recipe, "test", stored=stored)


def contrastive(completions: list[str], rows: Any = ROWS, negatives: int = 8, **options: Any) -> list[float | None]:
    reward = SemanticReward(Circle(), contrast=Contrast(rows, negatives, temperature=0.5), **options)
    count = len(completions)
    return reward(["opposite of 0"] * count, completions, answer=["cold"] * count, input=["hot"] * count)


def test_the_contrast_by_hand() -> None:
    """Own answer cold (90°), negatives hot (the input, 0°), wet (180°), dry (270°); another row's "Cold!" is the own
    answer. icy (60°): cosines √3/2, 1/2, −1/2, −√3/2, at temperature ½."""
    root = math.sqrt(3)
    wanted = math.exp(root) / (math.exp(root) + math.exp(1) + math.exp(-1) + math.exp(-root))
    right, echo, icy, unknown = contrastive(["cold", "hot", "icy", "?"])
    assert icy == pytest.approx(wanted)
    assert right == pytest.approx(math.exp(2) / (math.exp(2) + 2 + math.exp(-2)))
    assert echo == pytest.approx(1 / (math.exp(2) + 2 + math.exp(-2))), "cosine 0 with the own answer, 1 with itself"
    assert unknown is None


def test_an_echo_earns_less_than_by_cosine() -> None:
    """The issue's fault: raw similarity pays the input. Here the input (60°) has cosine √3/2 with the answer (90°)."""
    plain = SemanticReward(Circle(), alpha=1.0)
    contrast = SemanticReward(Circle(), contrast=Contrast(ROWS, 8, temperature=0.1))
    rows = {"prompts": ["p"] * 2, "completions": ["icy", "cold"], "answer": ["cold"] * 2, "input": ["icy"] * 2}
    assert plain(**rows)[0] == pytest.approx(math.sqrt(3) / 2)  # type: ignore[arg-type]
    echo, right = contrast(**rows)  # type: ignore[arg-type]
    assert echo == pytest.approx(1 / (1 + math.exp((1 - math.sqrt(3) / 2) / 0.1)), abs=1e-3)
    assert right == pytest.approx(1 - echo, abs=1e-3)


def test_negatives_depend_on_the_row_alone() -> None:
    rows = [{"prompt": str(i), "answer": f"answer {i}"} for i in range(50)]
    contrast = Contrast(rows, 5)
    drawn = {i: contrast.answers(str(i), f"answer {i}", str) for i in range(50)}
    again = {i: Contrast(rows, 5).answers(str(i), f"answer {i}", str) for i in reversed(range(50))}
    assert drawn == again
    for i, texts in drawn.items():
        assert len(texts) == len(set(texts)) == 5
        assert f"answer {i}" not in texts
    assert len({tuple(texts) for texts in drawn.values()}) == 50, "each row has its own"
    used = [text for texts in drawn.values() for text in texts]
    assert len(set(used)) > 40, "all rows are drawn from"


@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_reward_depends_on_neither_order_nor_company(order: list[int], kept: list[bool]) -> None:
    texts = ["cold", "hot", "icy", "wet", "dry", "?"]
    reward = SemanticReward(Circle(), contrast=Contrast(ROWS, 2))

    def of(chosen: list[int]) -> dict[int, float | None]:
        many = len(chosen)
        got = reward(
            [f"p{i % 2}" for i in chosen], [texts[i] for i in chosen], answer=["cold"] * many, input=["hot"] * many
        )
        return dict(zip(chosen, got, strict=True))

    whole = of(list(range(6)))
    some = [i for i in order if kept[i]]
    assert of(some) == pytest.approx({i: whole[i] for i in some}, nan_ok=True) if some else True


def test_few_other_answers_and_none() -> None:
    """A negative equal to the own answer is left out; where nothing is left, the reward is missing."""
    same = [{"prompt": "q", "answer": "cold"}] * 3
    assert contrastive(["cold"], same) == [pytest.approx(1 / (1 + math.exp(-2)))], "the input alone"
    reward = SemanticReward(Circle(), contrast=Contrast(same))
    assert reward(["p"], ["cold"], answer=["cold"], input=["Cold"]) == [None], "a copying task with one answer"
    assert reward(["p"], ["cold"], answer=[None], input=["hot"]) == [None]


def test_with_two_embedders_the_smaller_probability_counts() -> None:
    class Turned(Circle):
        def embed(self, texts: Sequence[str]) -> Tensor:
            return super().embed([{"icy": "hot"}.get(text, text) for text in texts])

    one, both = (contrastive(["icy"], guards=Guards(second=second))[0] for second in (None, Turned()))
    assert both == contrastive(["hot"])[0]
    assert one is not None
    assert both is not None
    assert both < one


def test_a_cut_completion_that_is_too_long_earns_less() -> None:
    """Six words for one, cut, with c = 4: 4/6 of the reward. One that ended, or is short enough, earns all of it."""
    embedder = load_embedder("lexical")
    reward = SemanticReward(embedder, alpha=1.0, guards=Guards(max_cut_ratio=4.0))
    free = SemanticReward(embedder, alpha=1.0)
    texts = ["cold icy wet dry hot warm", "cold icy wet dry hot warm", "cold icy wet dry"]
    arguments: dict[str, Any] = {"prompts": ["p"] * 3, "completions": texts, "answer": ["cold"] * 3}
    plain = free(**arguments)
    assert reward(**arguments) == plain, "no word of a cut"
    got = reward(**arguments, completion_truncated=[True, False, True])
    assert got == [pytest.approx(plain[0] * 4 / 6), plain[1], plain[2]]  # type: ignore[operator]


def test_numbers_count_and_words_are_not_joined() -> None:
    embedder = load_embedder("lexical")
    eggs: dict[str, Any] = {"prompts": ["p"], "completions": ["99 eggs"], "answer": ["12 eggs"]}
    assert SemanticReward(embedder, clean="letters")(**eggs) == [pytest.approx(1.0)]
    assert SemanticReward(embedder, clean="a_to_z")(**eggs) == [pytest.approx(1.0)], "the released notebooks'"
    assert SemanticReward(embedder)(**eggs)[0] < 0.9  # type: ignore[operator]
    york: dict[str, Any] = {"prompts": ["p"], "completions": ["New-York"], "answer": ["new york"]}
    assert SemanticReward(embedder)(**york) == [pytest.approx(1.0)]
    assert SemanticReward(embedder, clean="letters")(**york)[0] < 0.9  # type: ignore[operator]
    assert SemanticReward(embedder, clean="a_to_z")(**york) == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("clean", "answer", "why"),
    [
        ("letters", "42", "has no letters"),
        ("a_to_z", "42", "has no letter from a to z"),
        ("a_to_z", "Ω", "has no letter from a to z"),
        ("letters", "Ω", None),
        ("words", "42", None),
        ("words", " ", "is empty"),
        ("none", "42", None),
    ],
)
def test_an_answer_that_cleaning_empties_is_refused(clean: str, answer: str, why: str | None) -> None:
    told = why and f"{why}: set `reward.clean: none`"
    assert why_not_compared(config_with({"kind": "semantic", "clean": clean}), answer) == told


@pytest.mark.parametrize(
    ("reward", "answer", "refused"),
    [
        ({"kind": "binary"}, "so 1.2.3", True),
        ({"kind": "binary"}, "so 12", False),
        ({"kind": "binary"}, 12, False),
        ({"kind": "token_f1"}, "twelve", False),
    ],
)
def test_an_answer_without_a_number_is_refused_where_the_number_is_the_reward(
    reward: dict[str, str], answer: Any, refused: bool
) -> None:
    config = config_with(reward)
    config = config.model_copy(update={"data": config.data.model_copy(update={"checker": "final_number"})})
    why = "has no number that `final_number` can read: correct it, or choose another `data.checker`"
    assert why_not_compared(config, answer) == (why if refused else None)


def test_answers_that_the_embedder_does_not_know_are_noted() -> None:
    reward = config_with({"kind": "semantic", "embedder": "minilm"}).reward
    said: list[str] = []

    def build(*answers: str | None) -> None:
        build_reward(reward, load_checker("equality"), notice=said.append, rows=[{"answer": text} for text in answers])

    build("hot", "cold", None, "")
    build()
    assert not said
    build("hot", "巴黎", None, "Köln 罗", "cold")
    (note,) = said
    assert note.startswith("reward.embedder: 50% of the first 4 answers contain characters that 'minilm' does not know")


def test_token_f1_by_hand() -> None:
    """{the, cat, sat} and {the, cat}: 2·2/(3 + 2). A repeated word counts as often as both have it."""
    answers = ["the cat", "the cat", "the the cat", "12 eggs", "?", None]
    texts = ["The cat sat.", "a dog", "the the the", "99 eggs", "?", "x"]
    wanted = [0.8, 0.0, 2 * 2 / 6, 0.5, 1.0, None]
    assert token_f1_reward(["p"] * 6, texts, answer=answers) == pytest.approx(wanted, nan_ok=True)


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd"), min_size=1))
def test_token_f1_is_symmetric_and_one_for_the_same_words_alone(one: list[str], other: list[str]) -> None:
    (there,), (back,) = (
        token_f1_reward(["p"], [" ".join(a)], answer=[" ".join(b)]) for a, b in ((one, other), (other, one))
    )
    assert there == back
    assert there is not None
    assert 0 <= there <= 1
    assert (there == 1) == (sorted(one) == sorted(other))


def test_old_run_folders_keep_their_cleaning_and_have_no_new_guard() -> None:
    old = {"kind": "semantic", "embedder": "lexical", "guards": {"input_weight": 0.5}}
    reward = config_with(old, stored=True).reward
    assert (reward.clean, reward.guards.max_cut_ratio) == ("letters", None)
    bare = config_with({"kind": "semantic"}, stored=True).reward
    assert (bare.clean, bare.guards.max_cut_ratio) == ("letters", None)
    new = config_with(old).reward
    assert (new.clean, new.guards.max_cut_ratio) == ("words", 4.0)


@pytest.mark.parametrize(
    "reward",
    [
        {"kind": "semantic"},
        {"kind": "semantic", "form": "contrastive", "negatives": 3, "temperature": 0.2},
        {"kind": "semantic", "form": "euclidean"},
        {"kind": "token_f1"},
        {"kind": "probability", "answer_after": "Answer:", "debias": False},
        {"kind": "combined", "combine": "annealed", "hit": 0.5, "rewards": [{"kind": "binary"}, {"kind": "token_f1"}]},
        {"kind": "combined", "combine": "tie_break", "rewards": [{"kind": "binary"}, {"kind": "semantic"}]},
    ],
)
def test_a_written_config_is_read_again(reward: dict[str, Any]) -> None:
    config = config_with(reward)
    for stored in (False, True):
        assert check_config(parse_yaml(config_yaml(config), "x"), "x", stored=stored) == config


@pytest.mark.parametrize(
    ("reward", "line"),
    [
        ({"kind": "semantic", "form": "contrastive", "alpha": 2.0}, "`alpha` has no effect with `form: contrastive`"),
        ({"kind": "semantic", "temperature": 0.5}, "`temperature` has no effect with `form: clip`"),
        ({"kind": "semantic", "form": "shift", "negatives": 4}, "`negatives` has no effect"),
        ({"kind": "semantic", "form": "contrastive", "guards": {"input_weight": 1.0}}, "compares with the input"),
        ({"kind": "semantic", "clean": "word"}, "clean"),
        ({"kind": "probability", "sees": "answer"}, "answer_after"),
        ({"kind": "combined", "combine": "annealed", "rewards": [{"kind": "binary"}] * 3}, "takes two rewards"),
        (
            {"kind": "combined", "combine": "tie_break", "rewards": [{"kind": "token_f1"}, {"kind": "binary"}]},
            "takes first the check, then the dense reward: swap the two",
        ),
        (
            {"kind": "combined", "combine": "sum", "hit": 1.0, "rewards": [{"kind": "binary"}] * 2},
            "`hit` has no effect",
        ),
        (
            {"kind": "combined", "combine": "tie_break", "weights": [1.0, 1.0], "rewards": [{"kind": "binary"}] * 2},
            "`weights` has no effect",
        ),
    ],
)
def test_refused(reward: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        config_with(reward)


def test_the_policy_s_own_probability_needs_whole_weights_that_stand_still() -> None:
    recipe = {"method": {"name": "grpo"}, "data": {"train": "r.jsonl"}, "reward": "probability", "group_size": 4}
    with pytest.raises(UserError, match=r"scale\.shard"):
        check_config({**recipe, "scale": {"shard": 2}}, "test")
    with pytest.raises(UserError, match=r"scale\.staleness"):
        check_config({**recipe, "scale": {"staleness": 1, "sampling": {"kind": "ray"}}}, "test")


def test_a_completion_of_one_line_has_nothing_before_its_answer() -> None:
    """Its reward would be 0, whatever it says."""
    recipe = {"method": {"name": "grpo"}, "data": {"train": "r.jsonl"}, "group_size": 4, "sampling": {"stop": ["\n"]}}
    with pytest.raises(UserError, match=r"set `reward\.answer_after`"):
        check_config({**recipe, "reward": "probability"}, "test")
    assert check_config({**recipe, "reward": {"kind": "probability", "answer_after": "Answer:"}}, "test")


@pytest.mark.parametrize("task", ["antonyms", "categories", "colors", "copying", "sentiment"])
def test_the_paper_s_recipes_keep_the_released_cleaning(task: str) -> None:
    reward: Any = load_config(f"pgsrm-{task}-paper").reward
    assert (reward.clean, reward.guards.max_cut_ratio) == ("letters", None)


def test_the_config_s_options_reach_the_reward() -> None:
    config = config_with({"kind": "semantic", "form": "contrastive", "negatives": 1, "temperature": 0.5}).reward
    rows = [{"prompt": "p", "answer": "cold"}, {"prompt": "q", "answer": "wet"}]
    reward = build_reward(config, exact_reward, rows=rows)
    assert isinstance(reward, SemanticReward)
    got = reward(["p"], ["cold"], answer=["cold"], input=["hot"])[0]
    e = torch.nn.functional.normalize(load_embedder("lexical").embed(["cold", "hot", "wet"]).double(), dim=1)
    cosines = (e @ e[0]) / 0.5
    assert got == pytest.approx(float(cosines.softmax(0)[0]), rel=1e-4)


def test_the_mean_of_a_tie_breaker_shows_progress() -> None:
    """The notice is for rewards whose mean stays the same, whatever is learned."""
    parts = [{"kind": "binary"}, {"kind": "token_f1"}]
    for combine, notices in (("normalised", 1), ("tie_break", 0)):
        config = config_with({"kind": "combined", "combine": combine, "rewards": parts})
        assert len(progress_notices(config, config.method)) == notices
