"""Flows that ask a model or a function: semantic, reward_model, python."""

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.tiny_models import tiny_scorer
from vigneron.errors import UserError
from vigneron.policy.reward_model import set_reward_model_kind
from vigneron.rewards.graders.build import build_grader
from vigneron.rewards.graders.models import SemanticGrader
from vigneron.rubric.model import Item, PythonItem, RewardModelItem, SemanticItem
from vigneron.sources.verdict import Grader, GraderInput


def render(template: str, answered: GraderInput) -> str:
    return template.replace("{{ row.answer }}", str(answered.row.get("answer")))


def built(item: Item, **options: Any) -> Grader:
    return build_grader(item, render=render, **options)


def semantic(**options: Any) -> SemanticItem:
    return SemanticItem(name="it", description="d", flow="semantic", **options)


def scores(grader: Grader, *samples: GraderInput) -> list[float | None]:
    return [verdict.score for verdict in grader(samples)]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    file.write_text("3 2\na 3 4\nb 4 3\nc -3 -4\n")  # cosines with a: 1, 24/25, -1
    return str(file)


@pytest.mark.parametrize(
    ("form", "alpha", "wanted"),
    [("clip", 2.0, [1, 0.96**2, 0, 0, 0]), ("shift", 2.0, [1, 0.98**2, 0, 0.25, 0.25])],
)
def test_semantic_is_pgsrms_reward(vectors: str, form: Any, alpha: float, wanted: list[float], tmp_path: Path) -> None:
    """An empty response, and one of unknown words, are genuine: their cosine is 0."""
    grader = built(semantic(embedder=vectors, alpha=alpha, form=form), cache=tmp_path / "kept.sqlite")
    samples = [GraderInput("q", response, {"answer": "a"}) for response in ("A!", "b", "c", "", "unheard")]
    assert scores(grader, *samples) == pytest.approx(wanted, abs=1e-6)
    assert grader([]) == []
    assert (tmp_path / "kept.sqlite").is_file()


@pytest.mark.parametrize(("clean", "wanted"), [("letters", [1, 0]), ("words", [1, 0.9899495]), ("none", [0, 0])])
def test_an_item_says_how_its_texts_are_cleaned(vectors: str, clean: Any, wanted: list[float]) -> None:
    """`a-b` is two words, of the mean (3.5, 3.5), whose cosine with a is 7/(5·√2) = 0.98995; `ab` is no known one."""
    grader = built(semantic(embedder=vectors, alpha=1.0, clean=clean))
    samples = [GraderInput("q", response, {"answer": "a"}) for response in ("A!", "a-b")]
    assert scores(grader, *samples) == pytest.approx(wanted, abs=1e-6)


def test_numbers_count_where_an_item_does_not_say_how_texts_are_cleaned() -> None:
    grader = built(semantic(embedder="lexical"))
    eggs, others = scores(
        grader, *(GraderInput("q", response, {"answer": "12 eggs"}) for response in ("12 eggs", "99 eggs"))
    )
    assert eggs == pytest.approx(1.0)
    assert others is not None
    assert others < 0.5


class Losing:
    name = "losing"

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[math.nan, 1.0] if text == "lost" else [1.0, 0.0] for text in texts])


def test_what_could_not_be_embedded_is_missing_and_spoils_no_other() -> None:
    grader = SemanticGrader(semantic(), render, Losing())
    pairs = [("x", "y"), ("lost", "y"), ("x", "lost"), ("y", "x")]
    verdicts = grader([GraderInput("q", response, {"answer": answer}) for response, answer in pairs])
    assert [verdict.score for verdict in verdicts] == [1, None, None, 1]
    assert verdicts[1].why == "the response or the reference could not be embedded"


def test_items_that_name_the_same_embedder_share_it_and_a_wrong_name_is_the_items(vectors: str) -> None:
    loaded: dict[tuple[str, str], Any] = {}
    for alpha in (1.0, 2.0):
        built(semantic(embedder=vectors, alpha=alpha), loaded=loaded)
    assert list(loaded) == [("embedder", vectors)]
    with pytest.raises(UserError, match=r"^item 'it', embedder: unknown embedder 'minlm' \(did you mean 'minilm'\?\)"):
        built(semantic(embedder="minlm"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters()) | st.sampled_from(["a", "b c", "C."]), min_size=1, max_size=4))
def test_semantic_lies_between_0_and_1_and_is_each_samples_own(vectors: str, texts: list[str]) -> None:
    for form in ("clip", "shift"):
        grader = built(semantic(embedder=vectors, form=form))
        samples = [GraderInput("q", text, {"answer": "a b"}) for text in texts]
        verdicts = grader(samples)
        assert all(verdict.score is not None and 0 <= verdict.score <= 1 for verdict in verdicts)
        assert grader(samples[::-1]) == verdicts[::-1]
        assert [grader([sample])[0] for sample in samples] == verdicts


@pytest.fixture(scope="module")
def reward_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "reward"
    scorer = tiny_scorer("llama")
    set_reward_model_kind(scorer, "reward")
    scorer.causal.save_pretrained(folder)
    scorer.tokenizer.save_pretrained(folder)
    return folder


def reward_model(folder: Path, **options: Any) -> RewardModelItem:
    return RewardModelItem(name="human", description="d", flow="reward_model", model=str(folder), **options)


def test_a_reward_models_score_as_it_is_or_through_the_logistic_function(reward_folder: Path) -> None:
    samples = [
        GraderInput("q", "yes"),
        GraderInput("q", "", {"prompt": "say"}),
        GraderInput("q", "yo", {"prompt": [{"role": "user", "content": "hi"}]}),
    ]
    plain = tiny_scorer("llama")

    def passed(text: str) -> float:
        with torch.no_grad():
            return float(plain.model(torch.tensor([[*plain.tokenizer(text)["input_ids"], 0]])).logits)

    plain.model.config.pad_token_id = None
    wanted = [passed(text) for text in ("qyes", "say", "user: hi\nanswer: yo")]
    loaded: dict[tuple[str, str], Any] = {}
    got = scores(built(reward_model(reward_folder, squash="none"), loaded=loaded), *samples)
    squashed = scores(built(reward_model(reward_folder), loaded=loaded), *samples)
    assert got == pytest.approx(wanted, abs=1e-5)
    assert squashed == pytest.approx([1 / (1 + math.exp(-score)) for score in wanted], abs=1e-5)
    assert len(loaded) == 1


def test_a_model_that_is_no_reward_model_is_the_items_to_mend(tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=r"^item 'human', model: '.*' is not a reward or preference model"):
        built(reward_model(tiny_folder))


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions of TRL's signature."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "grader_functions.py").write_text(
        """
import asyncio, sys, threading

def lengths(prompts, completions, answer, function, **columns):
    assert not columns, columns
    return [None if text == "?" else len(text) - len(wanted) for text, wanted in zip(completions, answer)]

async def slow(completions, **columns):
    await asyncio.sleep(0.01)
    return [1.0 if threading.current_thread().name == "async" else 0.0] * len(completions)

def roles(prompts, completions, **columns):
    return [1.0 if completion == [{"role": "assistant", "content": "yo"}] else 0.0 for completion in completions]

def short(completions, **columns):
    return [1.0]

def not_a_number(completions, **columns):
    return [1.0, float("nan")]

def raises(completions, **columns):
    raise KeyError("gone")

def leaves(completions, **columns):
    sys.exit(3)

async def fails(completions, **columns):
    raise KeyError("later")
"""
    )
    return "grader_functions"


def python(function: str) -> PythonItem:
    return PythonItem(name="own", description="d", flow="python", function=function)


def test_a_python_function_gets_every_column_and_none_is_missing(functions: str) -> None:
    grader = built(python(f"{functions}:lengths"))
    row = {"prompt": "p", "answer": "ab", "function": "f"}
    verdicts = grader([GraderInput("q", text, row) for text in ("abcd", "?", "")])
    assert [verdict.score for verdict in verdicts] == [2, None, -2]
    assert [verdict.why for verdict in verdicts] == [None, "the function returned None", None]
    assert not grader.overlaps
    assert grader([]) == []


def test_an_awaitable_is_awaited_and_waits(functions: str) -> None:
    grader = built(python(f"{functions}:slow"))
    assert grader.overlaps
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(scores(grader, GraderInput("q", "a"), GraderInput("q", "b"))))
    thread.start()
    thread.join()
    assert found == [[1, 1]]


def test_a_conversations_completion_is_a_message(functions: str) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    assert scores(
        built(python(f"{functions}:roles")), GraderInput("q", "yo", {"prompt": prompt}), GraderInput("q", "yo")
    ) == [1, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", "returned 1 values for 2 completions"),
        ("not_a_number", "returned nan for row 2; a missing reward is None"),
        ("raises", r"raised KeyError: 'gone' \(grader_functions.py, line \d+\)"),
        ("leaves", r"called exit\(3\)"),
        ("fails", "raised KeyError: 'later'"),
    ],
)
def test_a_function_that_is_broken_is_named_with_its_item(functions: str, name: str, message: str) -> None:
    grader = built(python(f"{functions}:{name}"))
    with pytest.raises(UserError, match=f"^item 'own': function '{functions}:{name}' {message}"):
        grader([GraderInput("q", "a"), GraderInput("q", "b")])


def test_a_function_that_is_not_there_is_refused_when_built(functions: str) -> None:
    with pytest.raises(UserError, match=f"^item 'own', function: '{functions}' has no function 'gone'"):
        built(python(f"{functions}:gone"))
