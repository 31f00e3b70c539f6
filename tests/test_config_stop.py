"""The config's stop strings: what is refused, and which methods can have them."""

from typing import Any

import pytest

from support.minimal_recipe import again, check, line_of


@pytest.mark.parametrize(
    ("stop", "line"),
    [
        ([""], "an empty string would end every completion: remove it"),
        ("", "an empty string would end every completion: remove it"),
        (["a", "b", "a"], "'a' is listed twice: remove one"),
        (["\n\n", "\n"], "'\\n\\n' has no effect, because it contains '\\n': remove it"),
        (["\\n"], "'\\n' is a backslash and a letter: YAML needs double quotes, as in \"\\n\""),
        (["\ufffd"], "contains U+FFFD, which stands for broken characters: remove it"),
        ([3], "should be a valid string"),
        (3, "should be a valid list"),
    ],
)
def test_stop_strings_that_cannot_be_meant_are_one_line(stop: Any, line: str) -> None:
    found = line_of(sampling={"stop": stop})
    assert found.startswith("my.yaml: sampling.stop")
    assert line in found


def test_one_stop_string_needs_no_list_and_is_kept() -> None:
    assert check(sampling={"stop": "\n"}).sampling.stop == ["\n"]
    assert again(check(sampling={"stop": ["\n\n", "é"]})).sampling.stop == ["\n\n", "é"]


@pytest.mark.parametrize("name", ["sft", "kto"])
def test_held_out_completions_of_given_texts_can_have_stop_strings(name: str) -> None:
    assert check(method={"name": name}, sampling={"stop": "\n"}).sampling.stop == ["\n"]
    assert "`sampling` has no effect" in line_of(method={"name": name}, sampling={"stop": "\n", "top_k": 4})


@pytest.mark.parametrize("name", ["dpo", "score_model"])
def test_methods_that_sample_nothing_have_no_stop_strings(name: str) -> None:
    reward = {} if name == "score_model" else {"reward": None}
    assert "`sampling` has no effect" in line_of(method={"name": name}, sampling={"stop": "\n"}, **reward)
