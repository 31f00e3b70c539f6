"""Recipes: YAML and overrides as they are read, and what survives being written and read again."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.minimal_recipe import MINIMAL, again, check
from vigneron.config import BinaryRewardConfig, Config, GuardsConfig, KlConfig
from vigneron.errors import UserError
from vigneron.recipe import (
    changed_config,
    config_yaml,
    load_config,
    parse_yaml,
    recipe_names,
    recipe_text,
    with_override,
)
from vigneron.values import flatten


def file_with(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------------------------------------- YAML and overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-2e+3", -2000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("10", 10),
        ("-3", -3),
        ("true", True),
        ("e5", "e5"),
        ("1e", "1e"),
        ("'1e-5'", "1e-5"),
        ("", None),
    ],
)
def test_numbers_are_those_people_write(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "here")
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_short_exponent_is_a_number_in_a_file_and_in_an_override(tmp_path: Path) -> None:
    path = file_with(tmp_path, f"{yaml.safe_dump(MINIMAL)}optimizer: {{actor_lr: 1e-5}}\n")
    config = load_config(path, ["optimizer.critic_lr=3e-4"])
    assert (config.optimizer.actor_lr, config.optimizer.critic_lr) == (1e-5, 3e-4)


def test_overrides_reach_every_depth() -> None:
    config = load_config(
        "critic-antonyms",
        ["steps=3", "optimizer.actor_lr=1e-6", "method.kl.adaptive.target=0.4", "model.lora.targets=[q_proj]"],
    )
    assert (config.steps, config.optimizer.actor_lr) == (3, 1e-6)
    assert config.method.kl.adaptive is not None
    assert config.method.kl.adaptive.target == 0.4
    assert config.method.kl.coefficient == 1e-3  # its neighbour is untouched
    assert config.model.lora is not None
    assert config.model.lora.targets == ["q_proj"]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.template=Copy this: {x}", "Copy this: {x}"),
        ("data.template={question}", "{question}"),
        ("data.template={a} + {b} = ", "{a} + {b} = "),
        ("data.template='quoted: {x}'", "quoted: {x}"),
        ("data.template=10 # not a comment", "10 # not a comment"),
        ("data.template=null", None),
        ("data.columns={prompt: question}", {"prompt": "question"}),
        ("data.train=[a.jsonl, b.jsonl]", ["a.jsonl", "b.jsonl"]),
        ("sampling.stop=Answer: ", "Answer: "),
        ("sampling.temperature=1e-1", 0.1),
    ],
)
def test_text_with_colons_and_braces_needs_no_quotes(override: str, value: object) -> None:
    section, key = override.partition("=")[0].split(".")
    assert with_override({}, override) == {section: {key: value}}


def test_the_last_override_wins_and_the_given_mapping_is_untouched() -> None:
    given = {"a": {"b": 1, "c": 2}}
    assert with_override(with_override(given, "a.b=5"), "a.b=6") == {"a": {"b": 6, "c": 2}}
    assert given == {"a": {"b": 1, "c": 2}}


def test_a_section_can_be_named_by_its_kind() -> None:
    assert load_config("pgsrm-antonyms", ["reward=binary"]).reward == BinaryRewardConfig(kind="binary")
    assert load_config("pgsrm-antonyms", ["model=gpt2"]).model.name == "gpt2"
    assert load_config("pgsrm-antonyms", ["method=actor_critic"]).method.entropy_coefficient == 0.01


@pytest.mark.parametrize("override", ["steps", "=3", "a..b=3", ".=1"])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(UserError, match="is not of the form key=value"):
        load_config("critic-antonyms", [override])


def test_an_override_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown key 'optimizer\.lr'"):
        load_config("critic-antonyms", ["optimizer.lr=1e-5"])


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['echo harm']",
        "!!python/name:os.system",
        "steps: !!python/object/new:os.system [echo harm]",
        "a: [1, 2",
        "a: b: c",
        "a: \x00",
        "when: 2024-13-45",
        "a: &x [*y]",
    ],
)
def test_yaml_that_is_not_plain_data_is_one_line(tmp_path: Path, text: str) -> None:
    path = file_with(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    line = str(caught.value)
    assert line.startswith(path)
    assert "not valid YAML" in line
    assert len(line.splitlines()) == 1


def test_broken_yaml_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"my\.yaml, line 3: not valid YAML"):
        load_config(file_with(tmp_path, "steps: 1\nseed: 2\nabout: b: c\n"))


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just a text", "5"])
def test_a_recipe_is_a_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="a recipe must be a mapping"):
        load_config(file_with(tmp_path, text))


def test_a_recipe_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8 text"):
        load_config(str(path))


def test_a_file_is_named_after_itself_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = file_with(tmp_path, yaml.safe_dump(MINIMAL))
    assert load_config(path).recipe == "my"
    assert load_config(path, ["recipe=other"]).recipe == "other"
    assert load_config(path, keys={"steps": 7}).steps == 7


@pytest.mark.parametrize("text", ["steps: ten", 'steps: "10"'])
def test_a_text_in_a_file_is_not_a_number(tmp_path: Path, text: str) -> None:
    path = file_with(tmp_path, f"{yaml.safe_dump(MINIMAL)}{text}\n")
    with pytest.raises(UserError, match="steps: should be a valid integer"):
        load_config(path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "twice.yaml"
    recipe.write_text("steps: 3\nseed: 1\nsteps: 4\n")
    with pytest.raises(UserError, match="duplicate key 'steps'"):
        load_config(str(recipe))


# ---------------------------------------------------------------------------------------------- the round trip


@pytest.mark.parametrize("name", recipe_names())
def test_a_built_in_recipe_loads_says_what_it_is_and_survives_the_round_trip(name: str) -> None:
    config = load_config(name)
    assert config.recipe == name
    assert len(config.about) > 10
    assert "\n" not in config.about
    assert recipe_text(name).startswith("# ")
    assert f"# Run it: vigneron {'demo' if name == 'demo' else f'train {name}'}" in recipe_text(name)
    assert again(config) == config


def test_the_resolved_config_holds_every_default() -> None:
    written = yaml.safe_load(config_yaml(check()))
    assert set(written) == set(Config.model_fields)
    assert set(written["method"]["kl"]) == set(KlConfig.model_fields)


@pytest.mark.parametrize(
    "text", ["1e-5", "5e3", "10", "null", "true", "- a", "a: b", "{word}", " ", "é–ü", "'", "a\nb"]
)
def test_a_text_that_looks_like_something_else_survives_the_round_trip(text: str) -> None:
    config = check(recipe=text, about=text)
    assert again(config) == config


positive = st.floats(min_value=1e-30, max_value=1e30, exclude_min=True)
not_negative = st.floats(min_value=0, max_value=1e30)
share = st.floats(min_value=0, max_value=1)
count = st.integers(min_value=1, max_value=2**40)
NUMBERS = {
    "seed": st.integers(min_value=0, max_value=2**63 - 1),
    "steps": count,
    "prompts_per_step": count,
    "group_size": count,
    "max_new_tokens": count,
    "eval_every": st.integers(min_value=0, max_value=2**40),
    "reward.alpha": st.floats(min_value=1, max_value=1e30),
    "reward.missing_limit": share,
    "optimizer.actor_lr": positive,
    "optimizer.weight_decay": not_negative,
    "optimizer.warmup_steps": st.integers(min_value=0, max_value=2**40),
    "method.entropy_coefficient": not_negative,
    "method.kl.coefficient": st.floats(min_value=1e-6, max_value=0.1),  # within the default bounds
    "method.kl.adaptive.target": positive,
    "sampling.temperature": positive,
    "sampling.top_p": st.floats(min_value=0, max_value=1, exclude_min=True),
    "model.lora.alpha": positive,
}


@given(st.sets(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=6), st.data())
def test_numeric_overrides_survive_the_round_trip(keys: set[str], data: st.DataObject) -> None:
    values = {key: data.draw(NUMBERS[key], label=key) for key in sorted(keys)}
    config = load_config("critic-antonyms", [f"{key}={value!r}" for key, value in values.items()])
    for key, value in values.items():
        here: Any = config
        for part in key.split("."):
            here = getattr(here, part)
        assert here == value
    assert again(config) == config


# ---------------------------------------------------------------------------------------------- the paper's recipes


def test_the_papers_recipe_has_the_numbers_of_table_1() -> None:
    config = load_config("pgsrm-antonyms-paper")
    assert config.steps * config.prompts_per_step * config.group_size == 100_000
    assert config.prompts_per_step * config.group_size == 50
    assert config.optimizer.actor_lr == 1e-5
    assert config.optimizer.critic_lr == 1e-4
    assert config.optimizer.max_grad_norm == 1.0
    assert config.optimizer.schedule == "constant"
    assert config.method.faithful
    assert config.method.updates_per_step == 1
    assert config.method.clip_epsilon is None
    assert config.method.entropy_coefficient == 0.01
    assert config.method.value_coefficient == 0.5
    assert config.method.kl.coefficient == 5e-5
    assert config.method.kl.adaptive is not None
    assert config.method.kl.adaptive.target == 0.8
    assert config.reward.kind == "semantic"
    assert (config.reward.alpha, config.reward.form) == (4.0, "clip")
    assert config.data.task == "antonyms"


def test_the_binary_baseline_differs_in_the_reward_alone() -> None:
    paper = load_config("pgsrm-antonyms-paper").model_dump()
    binary = load_config("pgsrm-antonyms-binary").model_dump()
    assert {key for key in paper if paper[key] != binary[key]} == {"recipe", "about", "reward"}
    assert binary["reward"]["kind"] == "binary"


def test_a_shorthand_goes_with_a_further_key() -> None:
    config = load_config("pgsrm-antonyms", ["reward=python", "reward.function=a:b"])
    assert config.reward.model_dump(include={"kind", "function"}) == {"kind": "python", "function": "a:b"}


TASK_NAMES = ("colors", "antonyms", "categories", "copying", "sentiment")


@pytest.mark.parametrize("task", TASK_NAMES)
def test_each_task_has_the_papers_recipe_and_a_baseline_that_differs_in_the_reward_alone(task: str) -> None:
    paper, binary = load_config(f"pgsrm-{task}-paper"), load_config(f"pgsrm-{task}-binary")
    differing = {key for key in Config.model_fields if getattr(paper, key) != getattr(binary, key)}
    assert differing == {"recipe", "about", "reward"}
    assert (paper.reward.kind, binary.reward.kind) == ("semantic", "binary")
    assert paper.steps * paper.prompts_per_step * paper.group_size == 100_000
    word = task in TASK_NAMES[:3]
    assert (paper.prompts_per_step, paper.max_new_tokens) == ((50, 2) if word else (10, 10))
    assert (paper.method.kl.adaptive is not None) is word
    assert paper.method.kl.coefficient == 5e-5
    assert paper.method.faithful
    assert paper.sampling.temperature == 1.0
    assert paper.reward.guards == GuardsConfig(max_cut_ratio=None)
    assert paper.reward.clean == "letters"


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_released_settings_differ_from_the_papers_in_what_the_notebooks_do(task: str) -> None:
    paper, released = (flatten(load_config(f"pgsrm-{task}-{kind}").model_dump()) for kind in ("paper", "released"))
    differing = {key: released[key] for key in paper if paper[key] != released[key] and key not in ("recipe", "about")}
    wanted = {
        "method.value_start": "random",
        "data.checker": "strict_equality",
        "reward.form": "shift",
        "optimizer.weight_decay": 0.01,
        "reward.clean": "a_to_z" if task in TASK_NAMES[:3] else "none",
    }
    assert differing == wanted
    binary = load_config(f"pgsrm-{task}-released", ["reward=binary"])
    assert (binary.reward.kind, binary.data.checker) == ("binary", "strict_equality")


@pytest.mark.parametrize("name", ["grape-study", "grape-study-fresh", "grape-on-policy", "grape-topr", "grape-paper"])
def test_recipes_of_grape_write_out_what_a_new_default_may_change(name: str) -> None:
    """Results were published with them: they stay what they are, whatever the defaults of `grape` become."""
    own = yaml.safe_load(recipe_text(name))["method"]
    assert (own["correction"], own["baseline"]) == (("topr", "origin") if name == "grape-topr" else ("none", "group"))


def test_a_base_gives_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: pgsrm-antonyms\nsteps: 3\nreward: binary\n")
    Path("again.yaml").write_text("base: mine.yaml\nseed: 5\n")
    mine, again, base = load_config("mine.yaml"), load_config("again.yaml"), load_config("pgsrm-antonyms")
    assert (mine.recipe, mine.about, mine.steps, mine.reward.kind) == ("mine", "", 3, "binary")
    assert (again.recipe, again.steps, again.seed, again.optimizer) == ("again", 3, 5, base.optimizer)
    # Beside the recipe that names it, wherever one is.
    Path("inner").mkdir()
    monkeypatch.chdir("inner")
    assert load_config("../again.yaml").seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: mine.yaml", "mine.yaml: circular `base`: mine.yaml → mine.yaml"),
        ("base: [a]", "base: expected the name of a recipe"),
        ("base: pgsrm-antonym", "unknown recipe 'pgsrm-antonym' (did you mean 'pgsrm-antonyms'?)"),
    ],
)
def test_a_bad_base_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_config("mine.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_in_a_circle_through_folders_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.yaml").write_text("base: ../x/a.yaml")
    with pytest.raises(UserError, match="circular `base`"):
        load_config(str(tmp_path / "x" / "a.yaml"))


def test_another_kind_of_optimizer_keeps_the_other_keys() -> None:
    """Of a run's config, on resume: its learning rate is not the default."""
    before = load_config("grpo-antonyms", ["optimizer.actor_lr=3e-4", "optimizer.warmup_steps=5"])
    after = changed_config(before, ["optimizer.kind=adamw_8bit"], "run")
    assert after.optimizer == before.optimizer.model_copy(update={"kind": "adamw_8bit"})
