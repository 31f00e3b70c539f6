"""What counts as right: equality, sentiment inversion, and a function of one's own."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.data.prompts import Row
from vigneron.data.tasks import TASKS
from vigneron.errors import UserError
from vigneron.recipe import load_config, recipe_names
from vigneron.rewards.apply import RewardFailed
from vigneron.rewards.checkers import build_check, check_texts, exact_reward, load_checker
from vigneron.rewards.sentiment import inversion_reward, is_about, is_inverted, is_one_sentence, sentiment
from vigneron.run_data.readers import checker_name

HAPPY = "I love my new job."


@pytest.mark.parametrize(
    ("source", "completion", "right"),
    [
        (HAPPY, "I hate my new job.", True),
        (HAPPY, " 'I hate my new job.'", True),
        (HAPPY, "My new job makes me miserable", True),
        (HAPPY, "I don’t love my new job.", True),
        (HAPPY, HAPPY, False),  # an echo
        (HAPPY, "I hate my dog.", False),  # another topic
        (HAPPY, "She hates her new job.", False),  # not the first person
        (HAPPY, "She felt ill and hated the new job.", False),  # neither is this
        (HAPPY, "I go to my new job.", False),  # no sentiment
        (HAPPY, "I hate my new job. I hate it.", False),  # more than a sentence
        (HAPPY, "'I hate my new job.'\n\nIn this example", False),  # it runs on
        (HAPPY, "I hate my new job because the boss is so very mean to me and to all", False),  # twice as long
        (HAPPY, "", False),
        ("I passed my exam.", "I failed my exams.", True),  # the same word, inflected
        ("I feel confident about my future.", "I feel unsure and scared about my future.", True),
        ("I woke up feeling full of energy.", "I woke up feeling drained and tired.", True),
        ("I feel so happy.", "I feel so sad.", True),  # nothing it could be about
    ],
)
def test_sentiment_inversion(source: str, completion: str, right: bool) -> None:
    assert is_inverted(source, completion) is right
    assert inversion_reward(["p"], [completion], input=[source], answer=["x"]) == [float(right)]


def longest_word(row: Row) -> str:
    return max(row["input"].rstrip(".!").split(), key=len)


SENTENCES = [row for part in ("train", "tuning", "held_out") for row in TASKS["sentiment"].rows(part)]


@pytest.mark.parametrize("task", TASKS)
def test_every_recorded_answer_is_right_by_its_tasks_checker(task: str) -> None:
    rows = [row for part in ("train", "tuning", "held_out") for row in TASKS[task].rows(part)]
    rows = [row for row in rows if "messages" not in row]  # careless plays of games
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name != "prompt"}
    check = load_checker(TASKS[task].checker)
    verdicts = check(prompts=[row["prompt"] for row in rows], completions=columns["answer"], **columns)
    assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != 1.0] == []


@pytest.mark.parametrize(
    "attack",
    [
        lambda row: row["input"],
        lambda row: f"I hate hate hate: {row['input']}",
        lambda row: f"{row['input']} Terrible, awful, horrible.",
        lambda row: f"sad sad sad me {longest_word(row)}",
        lambda row: f"ill war {longest_word(row)}",
        lambda row: f"{row['answer']} In this example, the",
        lambda row: "The weather is terrible.",
    ],
)
def test_what_only_looks_sad_is_wrong(attack: Any) -> None:
    def fooled(row: Row) -> bool:
        return is_inverted(row["input"], attack(row))

    assert [row["input"] for row in SENTENCES if fooled(row)] == []


def test_its_parts() -> None:
    assert is_about("I love my new job.", "My job is gone.")
    assert not is_about("I love my new job.", "My dog is gone.")
    assert is_about("I feel so happy!", "My dog is gone.")
    assert is_one_sentence("I hate Mr.Smith!")
    assert not is_one_sentence("I hate it. Truly.")
    assert sentiment("I am happy") > 0.05
    assert sentiment("I am sad") < -0.05
    assert sentiment("") == 0.0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_no_text_is_its_own_inversion(text: str) -> None:
    assert not is_inverted(text, text)


def test_checkers_by_name() -> None:
    assert load_checker("equality") is exact_reward
    assert load_checker("sentiment_inversion") is inversion_reward
    with pytest.raises(UserError, match=r"^data.checker: cannot import 'no_such_vineyard'"):
        load_checker("no_such_vineyard:check")


def test_a_task_brings_its_checker_and_a_recipe_may_name_another() -> None:
    named = {name: checker_name(load_config(name)) for name in recipe_names()}
    assert {name for name, checker in named.items() if checker == "sentiment_inversion"} == {
        name for name in named if "sentiment" in name and not name.endswith("-released")
    }
    assert checker_name(load_config("pgsrm-sentiment", ["data.checker=equality"])) == "equality"


def test_the_released_check_strips_and_lowers_and_no_more() -> None:
    completions = [" Cold\n", "cold.", "'cold'", "cold", "ice  cold"]
    answer = ["cold", "cold", "cold", None, "ice cold"]
    strict = load_checker("strict_equality")(prompts=[""] * 5, completions=completions, answer=answer)
    assert strict == [1.0, 0.0, 0.0, None, 0.0]
    assert exact_reward([""] * 5, completions, answer=answer) == [1.0, 1.0, 1.0, None, 1.0]


def test_inclusion_forgives_what_stands_around_the_answer() -> None:
    completions = [" It is Cold, I think", "colder", "warm", "cold", "icy cold."]
    answer = ["cold", "cold", "cold", None, "Icy cold"]
    found = load_checker("inclusion")(prompts=[""] * 5, completions=completions, answer=answer)
    assert found == [1.0, 0.0, 0.0, None, 1.0]


def test_strict_equality_knows_one_letter_in_two_forms() -> None:
    strict = load_checker("strict_equality")
    assert strict(prompts=[""] * 2, completions=["cafe\u0301", "٤٢"], answer=["café", "42"]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("cold and slow", "cold, slow", True),
        ("slow, cold", "cold, slow", False),
        ("5", "-5", False),
        ("−5; 3", "-5, 3", True),
        ("3.14", "3,14", False),
        ("3,1,2", "3, 1, 2", True),
        ("दिल", "दाल", False),
        ("cafe\u0301, thé", "café, thé", True),
    ],
)
def test_words_and_numbers_in_their_order(completion: str, answer: str, right: bool) -> None:
    assert check_texts("in_order", ["p"], [completion], {"answer": [answer]}) == (right,)


def test_verdicts_are_kept_by_sample_and_a_row_without_an_answer_has_none() -> None:
    batch = make_batch([1, 1, 1], [1, 1, 1], columns={"answer": ("completion 0", None, "other")})
    assert build_check("equality")(batch).signals.correct == (True, None, False)
    assert build_check("equality")(make_batch([1], [1])).signals.correct == (None,)
    assert build_check("equality")(batch).signals.rewards_B is None  # a verdict is no reward


# ---------------------------------------------------------------------------------------------- one's own

OWN = """
def right(completions, completion_ids, **_): return [len(ids) == 1 for ids in completion_ids]
def broken(completions, **_): return [1 / 0]
def short(completions, **_): return []
def half(completions, **_): return [0.5] * len(completions)
def nan(completions, **_): return [float("nan")] * len(completions)
def words(completions, **_): return ["yes"] * len(completions)
async def later(completions, **_): return [None, 1, 0][:len(completions)]
"""


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    (tmp_path / "own_checks.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return make_batch([1, 1, 1], [1, 2, 1])  # without an `answer`


def test_a_checker_of_ones_own_is_asked_about_every_sample(batch: Batch) -> None:
    assert build_check("own_checks:right")(batch).signals.correct == (True, False, True)
    assert build_check("own_checks:later")(batch).signals.correct == (None, True, False)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", r"checker 'broken' raised ZeroDivisionError"),
        ("short", r"checker 'short' returned 0 values for 3 completions"),
        ("half", r"checker 'own_checks:half' returned 0.5 for row 1; expected 1, 0 or None"),
        ("nan", r"checker 'nan' returned nan for row 1"),
        ("words", r"checker 'words' returned the text 'yes' for row 1"),
    ],
)
def test_a_bad_checker_is_one_line(batch: Batch, name: str, line: str) -> None:
    with pytest.raises(RewardFailed, match=line) as caught:
        build_check(f"own_checks:{name}")(batch)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("batch")
def test_texts_are_checked_as_samples_are() -> None:
    assert check_texts("own_checks:later", ["p"] * 3, ["a"] * 3, {}) == (None, True, False)
    assert check_texts("equality", ["p"] * 3, ["a", "b", "c"], {"answer": ["a", "a", None]}) == (True, False, None)
    for name, problem in (
        ("broken", "raised ZeroDivisionError"),
        ("half", "returned 0.5"),
        ("words", "returned the text 'yes'"),
    ):
        with pytest.raises(RewardFailed, match=f"checker 'own_checks:{name}' {problem}"):
            check_texts(f"own_checks:{name}", ["p"], ["a"], {})
