"""Numbers in YAML: what is one, and that no text makes reading or writing it slow."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vigneron.errors import UserError
from vigneron.rubric.yaml_positions import read_text
from vigneron.run_store.status import status_of
from vigneron.yaml_text import LONGEST_NUMBER, Dumper, parse_yaml, quick_yaml

CPU_SECONDS = 2.0
HOSTILE = {
    "digits and a letter": "1" * 60_000 + "x",
    "digits": "1" * 60_000,
    "base 60": "1" + ":59" * 100_000,
    "hexadecimal": "0x" + "f" * 400_000,
    "tagged": "!!int 1" + ":59" * 100_000,
    "tagged float": "!!float 1" + ":59" * 100_000,
    "underscores": "1" + "_" * 100_000 + "x",
}
READERS: dict[str, Callable[[str], Any]] = {
    "parse_yaml": lambda text: parse_yaml(text, "here"),
    "quick_yaml": lambda text: quick_yaml(text, "here"),
    "a rubric": lambda text: read_text(text, "here", json=False).data,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_long_number_is_refused_and_other_text_is_text_and_neither_is_slow(name: str, reader: str) -> None:
    text, began = HOSTILE[name], time.process_time()
    if text.endswith("x"):
        assert READERS[reader](f"a: {text}") == {"a": text}
    else:
        with pytest.raises(UserError, match=f"^here, line 1: not valid YAML: a number with more than {LONGEST_NUMBER}"):
            READERS[reader](f"a: {text}")
    assert time.process_time() - began < CPU_SECONDS


@pytest.mark.parametrize("read", [parse_yaml, quick_yaml])
def test_a_list_of_runs_reads_numbers_as_a_recipe_does(read: Callable[[str, str], Any]) -> None:
    values = {"1e-5": 1e-5, "12_000": 12_000, "0x1f": 31, "1:30": 90, ".5": 0.5, "'7'": "7", "-3": -3, "yes": True}
    for text, value in values.items():
        assert read(f"a: {text}", "here") == {"a": value}
    with pytest.raises(UserError, match="more than 512 bits"):
        read("a: 0x" + "f" * 150, "here")
    with pytest.raises(UserError, match="more than 512 bits"):
        read("a: 1" + ":1" * 98, "here")


def test_vigneron_runs_lists_a_run_with_a_hostile_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"recipe: r\nsteps: {HOSTILE['hexadecimal']}\n", encoding="utf-8")
    assert status_of(run).steps == 0
    (run / "config.yaml").write_text(f"recipe: r\nsteps: 1{':59' * 80}\n", encoding="utf-8")
    assert status_of(run).steps == 0


def test_writing_a_text_of_digits_is_not_slow_either() -> None:
    began = time.process_time()
    text = yaml.dump({"a": HOSTILE["digits and a letter"], "b": "1" * 300, "c": "1e-5"}, Dumper=Dumper)
    assert time.process_time() - began < CPU_SECONDS
    assert parse_yaml(text, "here") == {"a": HOSTILE["digits and a letter"], "b": "1" * 300, "c": "1e-5"}


@pytest.mark.parametrize("text", ["steps: !!bool x", "when: !!timestamp x"])
def test_a_tag_that_does_not_fit_its_value_is_one_line(text: str) -> None:
    for read in (parse_yaml, quick_yaml):
        with pytest.raises(UserError, match="not valid YAML"):
            read(text, "it")


def test_numbers_with_the_same_hash_are_no_keys() -> None:
    with pytest.raises(UserError, match="a number as a key is too long"):
        parse_yaml("\n".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 9)), "it")
    assert parse_yaml("2026: 1", "it") == {2026: 1}
