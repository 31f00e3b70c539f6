"""Recipes: what is refused, with which line, and what survives being written and read again."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vigneron.config import (
    ActorCriticConfig,
    Config,
    KlConfig,
    check_config,
    config_yaml,
    load_config,
    parse_yaml,
    recipe_names,
    recipe_text,
    with_override,
)
from vigneron.errors import UserError

MINIMAL: dict[str, Any] = {
    "method": {"name": "actor_critic"},
    "data": {"task": "antonyms"},
    "reward": {"kind": "exact"},
}


def check(**changes: Any) -> Config:
    return check_config({**MINIMAL, **changes}, "my.yaml")


def lines_of(**changes: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(**changes)
    return str(caught.value).splitlines()


def line_of(**changes: Any) -> str:
    (line,) = lines_of(**changes)
    return line


def method(**keys: Any) -> dict[str, Any]:
    return {"name": "actor_critic", **keys}


def file_with(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "path", "near"),
    [
        ({"stepz": 3}, "stepz", "steps"),
        ({"optimizer": {"actor_lrr": 1e-5}}, "optimizer.actor_lrr", "actor_lr"),
        ({"reward": {"kind": "semantic", "embeder": "minilm"}}, "reward.embeder", "embedder"),
        ({"reward": {"kind": "python", "function": "a:b", "funktion": "a:b"}}, "reward.funktion", "function"),
        ({"method": method(kl={"coeficient": 0.1})}, "method.kl.coeficient", "coefficient"),
        ({"method": method(kl={"adaptive": {"targt": 0.1}})}, "method.kl.adaptive.targt", "target"),
        ({"model": {"lora": {"rnk": 4}}}, "model.lora.rnk", "rank"),
    ],
)
def test_an_unknown_key_is_named_by_its_path_with_the_nearest_known_one(
    changes: dict[str, Any], path: str, near: str
) -> None:
    assert line_of(**changes) == f"my.yaml: unknown key '{path}' (did you mean '{near}'?)"


def test_an_unknown_key_like_no_other_lists_what_there_is() -> None:
    line = line_of(sampling={"zzz": 1})
    assert line == "my.yaml: unknown key 'sampling.zzz' (there is: temperature, top_k, top_p, mask_truncated)"


def test_a_key_of_another_reward_is_unknown() -> None:
    assert line_of(reward={"kind": "exact", "alpha": 4.0}).startswith("my.yaml: unknown key 'reward.alpha'")


def test_all_errors_come_at_once() -> None:
    lines = lines_of(
        stepz=3,
        group_size=0,
        optimizer={"actor_lr": "fast"},
        reward={"kind": "semantic", "alpha": 0.5},
    )
    assert len(lines) == 4
    for key in ("'stepz'", "group_size", "optimizer.actor_lr", "reward.alpha"):
        assert sum(key in line for line in lines) == 1, key
    assert all(line.startswith("my.yaml: ") for line in lines)


@pytest.mark.parametrize("steps", ["ten", "10", 10.5, 10.0, True, None, [10]])
def test_a_wrong_type_is_refused_and_shown(steps: Any) -> None:
    line = line_of(steps=steps)
    assert line.startswith("my.yaml: steps: should be a valid integer")
    assert isinstance(steps, list) or line.endswith(f", not {steps!r}")


@pytest.mark.parametrize("text", ["steps: ten", 'steps: "10"'])
def test_a_text_in_a_file_is_not_a_number(tmp_path: Path, text: str) -> None:
    path = file_with(tmp_path, f"{yaml.safe_dump(MINIMAL)}{text}\n")
    with pytest.raises(UserError, match="steps: should be a valid integer"):
        load_config(path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"group_size": 0}, "group_size"),
        ({"steps": -1}, "steps"),
        ({"seed": -1}, "seed"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p"),
        ({"optimizer": {"actor_lr": 0.0}}, "optimizer.actor_lr"),
        ({"optimizer": {"actor_lr": float("inf")}}, "optimizer.actor_lr"),
        ({"optimizer": {"weight_decay": float("nan")}}, "optimizer.weight_decay"),
        ({"reward": {"kind": "semantic", "alpha": 0.99}}, "reward.alpha"),
        ({"reward": {"kind": "exact", "missing_limit": 2}}, "reward.missing_limit"),
        ({"reward": {"kind": "python", "function": "no_colon"}}, "reward.function"),
        ({"model": {"device": "tpu"}}, "model.device"),
        ({"method": method(clip_epsilon=1.0)}, "method.clip_epsilon"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_path(changes: dict[str, Any], key: str) -> None:
    line = line_of(**changes)
    assert line.startswith(f"my.yaml: {key}: should ")
    assert ", not " in line


def test_missing_sections_are_named() -> None:
    with pytest.raises(UserError) as caught:
        check_config({}, "my.yaml")
    expected = {f"my.yaml: '{key}' is missing" for key in ("method", "data", "reward")}
    assert set(str(caught.value).splitlines()) == expected
    assert line_of(reward={"kind": "python"}) == "my.yaml: 'reward.function' is missing"


def test_an_unknown_reward_lists_the_kinds() -> None:
    line = line_of(reward={"kind": "semantik"})
    assert line.startswith("my.yaml: reward.kind: one of 'semantic', 'exact', 'python'")
    assert line.endswith("not 'semantik'")
    assert "'actor_critic'" in line_of(method={"name": "grpo"})


def test_a_value_of_several_types_is_named_by_its_key_alone() -> None:
    for line in lines_of(model={"lora": {"targets": 5}}):
        assert line.startswith("my.yaml: model.lora.targets: should be")
    (line,) = (line for line in lines_of(model={"lora": {"targets": ["q", 5]}}) if "targets.1" in line)
    assert line == "my.yaml: model.lora.targets.1: should be a valid string, not 5"


def test_keys_that_are_no_texts_are_refused() -> None:
    with pytest.raises(UserError, match=r"^my\.yaml: 1: "):
        check_config({**MINIMAL, 1: 2}, "my.yaml")


@pytest.mark.parametrize("data", [{}, {"task": "antonyms", "train": "a.jsonl"}])
def test_data_has_one_source(data: dict[str, str]) -> None:
    assert line_of(data=data) == "my.yaml: data: give either `task` or `train`"


def test_a_task_brings_its_own_held_out_part() -> None:
    assert "brings its own held-out part" in line_of(data={"task": "antonyms", "held_out": "a.jsonl"})


# ---------------------------------------------------------------------------------------------- inert options


def test_alpha_with_euclidean_has_no_effect() -> None:
    line = line_of(reward={"kind": "semantic", "form": "euclidean", "alpha": 4.0})
    assert line == "my.yaml: reward: `alpha` has no effect with `form: euclidean`"
    config = check(reward={"kind": "semantic", "form": "euclidean"})
    assert again(config) == config


def test_several_updates_need_the_ratio() -> None:
    assert "method: several updates a step need `clip_epsilon`" in line_of(method=method(updates_per_step=2))
    assert check(method=method(updates_per_step=2, clip_epsilon=0.2)).method.updates_per_step == 2


def test_the_previous_policy_needs_an_estimator() -> None:
    line = line_of(method=method(kl={"against": "previous"}))
    assert line.startswith("my.yaml: method.kl: `against: previous`")
    assert line.endswith("add `estimator: k2`")
    assert check(method=method(kl={"against": "previous", "estimator": "k2"})).method.kl.against == "previous"


def test_bounds_that_cross_are_refused() -> None:
    line = line_of(method=method(kl={"adaptive": {"minimum": 0.2, "maximum": 0.1}}))
    assert line.startswith("my.yaml: method.kl.adaptive: `minimum`")


# ---------------------------------------------------------------------------------------------- faithful


def test_faithful_fills_algorithm_1() -> None:
    filled = check(method=method(faithful=True)).method
    assert (filled.kl.estimator, filled.kl.against, filled.value_position) == ("k1", "reference", "last_completion")
    plain = check().method
    assert (plain.kl.estimator, plain.value_position) == ("exact", "last_prompt")


def test_faithful_keeps_what_does_not_contradict_it() -> None:
    filled = check(method=method(faithful=True, kl={"coefficient": 0.5, "estimator": "k1"})).method
    assert filled.kl.coefficient == 0.5
    in_python = ActorCriticConfig(name="actor_critic", faithful=True, kl=KlConfig(coefficient=0.5))
    assert in_python == filled


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"kl": {"estimator": "k2"}}, "`kl.estimator: k1`"),
        ({"kl": {"estimator": "k2", "against": "previous"}}, "`kl.estimator: k1`"),
        ({"kl": {"estimator": "k1", "against": "previous"}}, "`kl.against: reference`"),
        ({"value_position": "last_prompt"}, "`value_position: last_completion`"),
        ({"clip_epsilon": 0.2}, "no clipping"),
    ],
)
def test_a_contradiction_of_faithful_is_an_error(keys: dict[str, Any], named: str) -> None:
    line = line_of(method=method(faithful=True, **keys))
    assert line.startswith("my.yaml: method: `faithful: true`")
    assert named in line


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
        "pgsrm-antonyms",
        ["steps=3", "optimizer.actor_lr=1e-6", "method.kl.adaptive.target=0.4", "model.lora.targets=[q_proj]"],
    )
    assert (config.steps, config.optimizer.actor_lr) == (3, 1e-6)
    assert config.method.kl.adaptive is not None
    assert config.method.kl.adaptive.target == 0.4
    assert config.method.kl.coefficient == 1e-3  # its neighbour is untouched
    assert config.model.lora is not None
    assert config.model.lora.targets == ["q_proj"]


def test_the_last_override_wins_and_the_given_mapping_is_untouched() -> None:
    given = {"a": {"b": 1, "c": 2}}
    assert with_override(with_override(given, "a.b=5"), "a.b=6") == {"a": {"b": 6, "c": 2}}
    assert given == {"a": {"b": 1, "c": 2}}


def test_a_section_can_be_named_by_its_kind() -> None:
    assert load_config("pgsrm-antonyms", ["reward=exact"]).reward.model_dump() == {
        "kind": "exact",
        "missing_limit": 0.05,
    }
    assert load_config("pgsrm-antonyms", ["model=gpt2"]).model.name == "gpt2"
    assert load_config("pgsrm-antonyms", ["method=actor_critic"]).method.entropy_coefficient == 0.01


@pytest.mark.parametrize("override", ["steps", "=3", "a..b=3", ".=1"])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(UserError, match="is not of the form key=value"):
        load_config("demo", [override])


def test_an_override_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown key 'optimizer\.lr'"):
        load_config("demo", ["optimizer.lr=1e-5"])


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
    with pytest.raises(UserError, match="a recipe is a mapping"):
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


# ---------------------------------------------------------------------------------------------- the round trip


def again(config: Config) -> Config:
    return check_config(parse_yaml(config_yaml(config), "config.yaml"), "config.yaml")


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
    config = load_config("pgsrm-antonyms", [f"{key}={value!r}" for key, value in values.items()])
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
    assert binary["reward"]["kind"] == "exact"


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "twice.yaml"
    recipe.write_text("steps: 3\nseed: 1\nsteps: 4\n")
    with pytest.raises(UserError, match="'steps' stands twice"):
        load_config(str(recipe))


def test_an_adaptive_coefficient_starts_within_its_bounds_and_sees_what_it_adapts_to() -> None:
    method = {"name": "actor_critic", "kl": {"coefficient": 5.0, "adaptive": {"target": 0.8}}}
    assert "outside of `adaptive`'s bounds" in line_of(method=method)
    previous = {"against": "previous", "estimator": "k2", "adaptive": {"target": 0.8}}
    method = {"name": "actor_critic", "clip_epsilon": 0.2, "updates_per_step": 2, "kl": previous}
    assert "successive_kl_every: 1" in line_of(method=method, successive_kl_every=0)


def test_a_kind_that_is_missing_or_given_short() -> None:
    assert (
        line_of(reward={"embedder": "lexical"})
        == "my.yaml: 'reward.kind' is missing: one of 'semantic', 'exact', 'python'"
    )
    assert "reward.kind: one of" in line_of(reward="nosuch")
