"""The fuzzed kinds of files: for each, a case from a random generator, and the code that reads its file."""

import csv
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from benchmarks.fuzzing.mutations import as_bytes, changed_bytes, changed_text, changed_tree, garbage
from vigneron.config import Config
from vigneron.recipe import check_config, config_yaml, load_config, parse_yaml, recipe_names, recipe_text
from vigneron.rubric.formats.convert import Options, convert
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import example_names, normalised, read_rubric, rubric_text, rubric_version
from vigneron.rubric.rows import check_rubric_rows
from vigneron.run_data.load import load_data, load_rows
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of

Case = Callable[[], Any]
Make = Callable[[Random, Path], Case]
"""A case that runs in an empty folder."""


def written(tree: Any, text: str, random: Random, dump: Callable[[Any], str]) -> bytes:
    """Garbage, changed bytes, changed text, or (mostly) changed values."""
    kind = random.randrange(10)
    if kind == 0:
        return garbage(random)
    if kind == 1:
        return changed_bytes(text.encode(), random)
    if kind in (2, 3):
        return as_bytes(changed_text(text, random), random)
    try:
        text = dump(changed_tree(tree, random))
    except (RecursionError, yaml.YAMLError, TypeError, ValueError):  # values that cannot be serialized
        return garbage(random)
    return as_bytes(changed_text(text, random) if kind == 4 else text, random)


def _yaml(tree: Any) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(tree, Dumper=dumper, allow_unicode=True, sort_keys=False))


# ---------------------------------------------------------------------------------------------- recipes and configs


@cache
def _recipes() -> list[tuple[str, Any]]:
    """Built-in recipes and resolved configs as text and as data."""
    names = recipe_names()
    texts = [*(recipe_text(name) for name in names), *(config_yaml(load_config(name)) for name in names)]
    own = {"method": {"name": "grpo"}, "data": {"train": "my.jsonl", "held_out": "~/other.csv"}, "model": "./mine"}
    texts.append(_yaml({**own, "reward": {"kind": "rubric", "file": "my.yaml"}, "base": "other.yaml"}))
    texts.append(_yaml({**own, "reward": {"kind": "semantic", "embedder": "./vectors.txt"}}))
    return [(text, parse_yaml(text, "here")) for text in texts]


def config_case(random: Random, folder: Path) -> Case:
    recipes = _recipes()
    text, tree = random.choice(recipes[-2:] if random.random() < 0.2 else recipes)
    run = folder / "run"
    run.mkdir()
    path = run / "config.yaml"
    path.write_bytes(written(tree, text, random, _yaml))
    as_run = random.random() < 0.5

    def case() -> None:
        status_of(run)
        config = RunFolder.open(run).config() if as_run else load_config(str(path))
        assert check_config(parse_yaml(config_yaml(config), "again"), "again") == config
        load_data(config)

    return case


# ---------------------------------------------------------------------------------------------- rubrics


FOREIGN: dict[str, tuple[str, Any]] = {
    "openai": (
        ".json",
        {
            "type": "multi",
            "graders": {
                "a": {
                    "type": "score_model",
                    "name": "a",
                    "model": "m",
                    "range": [0, 1],
                    "input": [{"role": "user", "content": "Is {{ sample.output_text }} right for {{ item.x }}?"}],
                },
                "b": {
                    "type": "string_check",
                    "name": "b",
                    "operation": "eq",
                    "input": "{{ sample.output_text }}",
                    "reference": "{{ item.answer }}",
                },
            },
            "calculate_output": "0.7 * a + 0.3 * b",
        },
    ),
    "verifiers": (
        ".json",
        {"criteria": [{"name": "a", "text": "Is it?", "weight": 2, "choices": ["no", "partly", "yes"]}]},
    ),
    "healthbench": (
        ".jsonl",
        {
            "prompt_id": "p",
            "prompt": [{"role": "user", "content": "Hello?"}],
            "rubrics": [{"criterion": "It is polite.", "points": 5, "tags": ["axis:tone"]}],
        },
    ),
}
ROW = {"prompt": "What is 1 plus 1?", "answer": "2", "category": "coding", "tests": ["assert True"], "rubric": "x"}


@cache
def _examples() -> list[tuple[str, Any]]:
    texts = [rubric_text(name) for name in example_names()]
    return [(text, parse_yaml(text, "here")) for text in texts]


def rubric_case(random: Random, folder: Path) -> Case:
    if random.random() < 0.25:
        return _foreign_rubric_case(random, folder)
    text, tree = random.choice(_examples())
    as_json = random.random() < 0.3
    path = folder / ("rubric.json" if as_json else "rubric.yaml")
    path.write_bytes(written(tree, json.dumps(tree) if as_json else text, random, json.dumps if as_json else _yaml))

    def case() -> None:
        _use(read_rubric(path))

    return case


def _use(rubric: Rubric) -> None:
    from vigneron.rubric.formats.convert import rubric_file_text

    assert rubric_version(normalised(rubric)[0])
    rubric_file_text(rubric, json_form=False)
    check_rubric_rows(rubric, [{**ROW, rubric.category_column or "category": next(iter(rubric.categories))}], "here")


def _foreign_rubric_case(random: Random, folder: Path) -> Case:
    source = random.choice(list(FOREIGN))
    suffix, tree = FOREIGN[source]
    path = folder / f"theirs{suffix}"
    path.write_bytes(written(tree, json.dumps(tree), random, json.dumps))
    target = random.choice((("vigneron", "ours.yaml"), ("openai", "o.json"), ("verifiers", "v.json")))

    def case() -> None:
        convert(path, source, folder / target[1], target[0], Options())

    return case


# ---------------------------------------------------------------------------------------------- datasets


CHAT = [{"role": "user", "content": "hot?"}]
ANSWER = [{"role": "assistant", "content": "cold"}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "recorded": [{"prompt": "hot", "answer": "cold"}, {"prompt": CHAT, "answer": "cold", "input": "hot"}],
    "shown": [
        {"prompt": "hot", "completion": " cold"},
        {"messages": [*CHAT, *ANSWER, *CHAT, *ANSWER]},
        {"prompt": CHAT, "completion": ANSWER},
    ],
    "pairs": [
        {"prompt": "hot", "chosen": "cold", "rejected": "hot", "score": 0.5},
        {"prompt": CHAT, "chosen": ANSWER, "rejected": [{"role": "assistant", "content": "hot"}]},
        {"chosen": "it is cold", "rejected": "it is hot"},
    ],
    "asked": [{"prompt": "hot", "category": "opposites"}, {"prompt": CHAT, "word": 1, "more": {"a": [1, 2.5, None]}}],
}


@cache
def _configs() -> dict[str, list[Config]]:
    def config(method: str, reward: str | dict[str, Any] | None, **data: Any) -> Config:
        given: dict[str, Any] = {"method": {"name": method}, "data": {"train": "x.jsonl", **data}}
        return check_config({**given, **({} if reward is None else {"reward": reward})}, "here")

    semantic = {"kind": "semantic", "embedder": "minilm"}
    python = {"kind": "python", "function": "m:f"}
    return {
        "recorded": [config("actor_critic", "binary"), config("actor_critic", semantic)],
        "shown": [config("sft", None)],
        "pairs": [config("dpo", None), config("reward_model", None), config("preference_model", None)],
        "asked": [config("actor_critic", python), config("actor_critic", python, template="Say {word} now")],
    }


def dataset_case(random: Random, folder: Path) -> Case:
    kind = random.choice(list(ROWS))
    config = random.choice(_configs()[random.choice((kind, kind, kind, random.choice(list(ROWS))))])
    rows = [random.choice(ROWS[kind]) for _ in range(random.randrange(1, 6))]
    path = folder / random.choice(("rows.jsonl", "rows.jsonl", "rows.csv"))
    dump = _csv if path.suffix == ".csv" else _jsonl
    path.write_bytes(written(rows, dump(rows), random, dump))
    tokenizer()

    def case() -> None:
        from vigneron.run_data.load import Data

        found, _ = load_rows(config, path)
        run = RunFolder(folder / "run")
        run.path.mkdir()
        run.write_config(config)
        run.write_data(config, Data(found, []))
        rows = list(found)
        assert list(run.data(config).train) == rows
        json.dumps(rows, sort_keys=True)
        _tokens(rows, config)

    return case


def _jsonl(rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows) if isinstance(rows, list) else json.dumps(rows)


def _csv(rows: Any) -> str:
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    names = list(dict.fromkeys(str(name) for row in found for name in row))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in found)
    return text.getvalue()


@cache
def tokenizer() -> Any:
    """The tiny model's tokenizer, created once."""
    from tempfile import TemporaryDirectory

    from transformers import AutoTokenizer

    from benchmarks.fuzzing.tiny import save_tiny_model

    with TemporaryDirectory() as folder:
        save_tiny_model(Path(folder))
        return AutoTokenizer.from_pretrained(folder)


def _tokens(rows: list[dict[str, Any]], config: Config) -> None:
    from vigneron.data.prompts import prompts_token_ids

    prompts_token_ids(tokenizer(), [row["prompt"] for row in rows], "the data")
    if config.method.reads == "demonstrations":
        from vigneron.data.formats import conversation_of

        for row in rows:
            if not isinstance(row["prompt"], str):
                conversation_of(row)


def case_of_bytes(path: Path) -> Case:
    """The function that reads a file of this name."""
    if path.name.startswith("rubric"):
        return lambda: _use(read_rubric(path))
    if path.name.startswith("rows"):
        return lambda: load_rows(_configs()["asked"][0], path)
    return lambda: load_config(str(path))
