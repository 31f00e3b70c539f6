"""The antonyms: their words, their split, and whether the bundled child can say the answers at all."""

import re
from collections import Counter, defaultdict

from support.tiny_models import smollm2_tokenizer
from vigneron.data.prompts import Row
from vigneron.data.tasks import TASKS, load_task
from vigneron.policy.bundled import SMOLLM2
from vigneron.recipe import load_config, recipe_names
from vigneron.rewards.checkers import is_exact
from vigneron.run_data.load import load_data

TASK = load_task("antonyms")
TRAIN, HELD_OUT = TASK.rows("train"), TASK.rows("held_out")


def families(rows: list[Row]) -> list[set[str]]:
    """Words joined by any question, as connected components."""
    joined: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        joined[row["word"]].add(row["answer"])
        joined[row["answer"]].add(row["word"])
    found, seen = [], set()
    for start in joined:
        if start in seen:
            continue
        family, border = {start}, [start]
        while border:
            fresh = joined[border.pop()] - family
            family |= fresh
            border.extend(fresh)
        seen |= family
        found.append(family)
    return found


def test_there_are_enough_words_and_none_is_asked_twice() -> None:
    words = [row["word"] for row in TRAIN + HELD_OUT]
    assert len(words) >= 120
    assert [word for word, times in Counter(words).items() if times > 1] == []


def test_words_and_answers_are_single_lowercase_words() -> None:
    for row in TRAIN + HELD_OUT:
        assert re.fullmatch(r"[a-z]+", row["word"]), row
        assert re.fullmatch(r"[a-z]+", row["answer"]), row
        assert row["word"] != row["answer"]


def test_families_by_hand() -> None:
    rows = [{"word": "a", "answer": "b"}, {"word": "c", "answer": "b"}, {"word": "d", "answer": "e"}]
    assert families(rows) == [{"a", "b", "c"}, {"d", "e"}]


def test_no_family_straddles_the_split() -> None:
    split = {row["word"]: row["split"] for row in TRAIN + HELD_OUT}
    for family in families(TRAIN + HELD_OUT):
        assert len({split[word] for word in family if word in split}) == 1, family
    seen_in_training = {word for row in TRAIN for word in (row["word"], row["answer"])}
    assert not seen_in_training & {word for row in HELD_OUT for word in (row["word"], row["answer"])}


def test_about_a_quarter_is_held_out() -> None:
    assert 0.15 <= len(HELD_OUT) / len(TRAIN + HELD_OUT) <= 0.35


def test_the_childs_prompt_is_the_papers() -> None:
    """PGSRM, A.3: "The opposite of ’word’ is ", with its space at the end."""
    for row in TRAIN + HELD_OUT:
        assert row["prompt"] == f"The opposite of '{row['word']}' is "


def test_a_template_makes_another_prompt() -> None:
    (first, *_) = TASK.rows("train", "{word} is not")
    assert first["prompt"] == f"{first['word']} is not"


def test_a_recipe_gets_both_parts() -> None:
    data = load_data(load_config("pgsrm-antonyms-paper"))
    assert (data.train, data.held_out) == (TRAIN, HELD_OUT)


def test_the_parents_examples_are_answered_as_the_recorded_ones() -> None:
    examples = re.findall(r'"(\w+)" → "(\w+)"', TASK.parent_instruction)
    recorded = {row["word"]: row["answer"] for row in TRAIN + HELD_OUT}
    assert len(examples) >= 3
    assert {word: answer for word, answer in examples if recorded.get(word, answer) != answer} == {}


def test_the_bundled_child_can_say_every_answer_within_the_recipes_tokens() -> None:
    recipes = [config for config in map(load_config, recipe_names()) if config.data.task == "antonyms"]
    assert len(recipes) >= 3
    assert {config.model.name for config in recipes} == {SMOLLM2}
    limit = min(config.max_new_tokens for config in recipes)
    tokenizer = smollm2_tokenizer()
    too_long = []
    for row in TRAIN + HELD_OUT:
        ways = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (row["answer"], f" {row['answer']}")]
        shortest = min(ways, key=len)
        assert is_exact(tokenizer.decode(shortest), row["answer"])
        if len(shortest) > limit:
            too_long.append((row["answer"], len(shortest)))
    assert too_long == []


def test_every_task_is_known_by_its_own_name() -> None:
    assert all(task.name == name for name, task in TASKS.items())
