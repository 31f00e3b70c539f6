"""Mistakes of somebody who knows TRL, or a method by another name: the line says what to write."""

from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron, write_jsonl
from support.minimal_recipe import line_of
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.config import GrpoConfig, MethodConfig
from vigneron.config.keys import keys_of, kind_of, models_in
from vigneron.config.parts import ModelConfig, OptimizerConfig, SamplingConfig
from vigneron.config.rewards import CombinedRewardConfig
from vigneron.config.scale import ScaleConfig, VllmSamplingConfig
from vigneron.config.top_level import TopLevel
from vigneron.config.trl_names import KEYS, METHODS_AS
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_store.headline_metrics import headline_metrics
from vigneron.run_store.metric_table import metric
from vigneron.yaml_text import parse_yaml

TINY: dict[str, Any] = {
    "reward": {"kind": "binary"},
    "optimizer": {},
    "group_size": 1,
    "steps": 1,
    "eval_every": 0,
}
GRPO = {"method": {"name": "grpo"}, "group_size": 2}


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("num_generations", "group_size"),
        ("max_completion_length", "max_new_tokens"),
        ("learning_rate", "optimizer.actor_lr"),
        ("use_vllm", "scale.sampling: {kind: vllm}"),
    ],
)
def test_a_key_of_trl_names_ours(key: str, ours: str) -> None:
    assert line_of(**GRPO, **{key: 8}) == f"my.yaml: unknown key '{key}' (TRL's name: here it is `{ours}`)"


def test_grpo_s_beta_is_the_kl_coefficient() -> None:
    line = line_of(method={"name": "grpo", "beta": 0.1}, group_size=2)
    assert line == "my.yaml: unknown key 'method.beta' (TRL's name: here it is `method.kl.coefficient`)"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({"load_in_4bit": True}, "unknown key 'model.load_in_4bit' (TRL's name: here it is `model.weights: 4bit`)"),
        ({"lora": {"r": 8}}, "unknown key 'model.lora.r' (PEFT's name: here it is `rank`)"),
    ],
)
def test_a_key_of_the_model_in_trl_or_peft(model: dict[str, Any], line: str) -> None:
    assert line_of(**GRPO, model=model) == f"my.yaml: {line}"


def test_every_name_of_trl_leads_to_a_key_or_a_method_that_exists() -> None:
    sections = {"method": GrpoConfig, "optimizer": OptimizerConfig, "sampling": SamplingConfig, "model": ModelConfig}
    known = {f"{name}.{key.name}" for name, model in sections.items() for key in keys_of(model)}
    known |= {*TopLevel.model_fields, *(f"reward.{name}" for name in CombinedRewardConfig.model_fields)}
    known |= {f"scale.sampling.{name}" for name in VllmSamplingConfig.model_fields}
    assert {text for text in KEYS.values() if ": " not in text} <= known
    for text in (text for text in KEYS.values() if ": " in text):
        section, _, key = text.partition(": ")[0].rpartition(".")
        {"model": ModelConfig, "scale": ScaleConfig}[section].model_validate(
            {key: parse_yaml(text, "hint")[f"{section}.{key}"], **({"lora": {}} if section == "model" else {})}
        )
    methods = {str(kind_of(model)): model for model in models_in(MethodConfig)}
    for text in METHODS_AS.values():
        given = parse_yaml(text.split("`")[1], "hint")["method"]
        methods[given["name"]].model_validate(given)


@pytest.mark.parametrize(("name", "hint"), [("rloo", "baseline: leave_one_out"), ("simpo", "name: dpo, loss: simpo")])
def test_a_method_of_another_name_says_what_to_write(name: str, hint: str) -> None:
    line = line_of(method={"name": name})
    assert line.startswith(f"my.yaml: method.name: '{name}' is `method: {{name: ")
    assert hint in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--steps", "5"), "'--steps' is not an option: config keys are given as key=value, here `steps=5`"),
        (("--optimizer.actor-lr=1e-5",), "here `optimizer.actor_lr=1e-5`"),
        (("--learning_rate", "1e-5"), "here `optimizer.actor_lr=1e-5`"),
    ],
)
def test_a_key_written_as_an_option_says_what_to_write(words: tuple[str, ...], line: str) -> None:
    answer = vigneron("train", "demo", "--name", "mine", *words)
    assert answer.code == 2
    assert line in answer.err


def test_a_short_name_and_a_command_of_other_tools_say_what_to_write() -> None:
    assert line_of(**GRPO, lr=1e-5) == "my.yaml: unknown key 'lr' (here it is `optimizer.actor_lr`)"
    assert vigneron("list").err == "error: there is no command 'list': did you mean `vigneron runs`?\n"


def test_a_method_is_no_recipe() -> None:
    answer = vigneron("train", "flower")
    assert answer.code == 2
    assert answer.err.startswith("error: 'flower' is a method, not a recipe: write a .yaml file with `method: {name:")


def test_methods_lists_the_allowed_values() -> None:
    (line,) = [line for line in vigneron("methods", "reinforce").out.splitlines() if "method.baseline" in line]
    assert "leave_one_out | critic" in line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"reward": {"kind": "combined", "rewards": [{"kind": "binary"}]}},
            "reward.rewards: should have at least 2 items, not 1",
        ),
        (
            {
                **GRPO,
                "reward": {"kind": "combined", "combine": "normalised", "rewards": [{"kind": "binary"}] * 2},
                "curriculum": {"by": "success"},
            },
            "or the checker's verdicts with `curriculum.measure: verdict`",
        ),
    ],
)
def test_lines_of_the_config_say_what_to_do(changes: dict[str, Any], line: str) -> None:
    assert line in line_of(**changes)


def test_a_missing_reward_says_what_it_is_for() -> None:
    recipe = {"method": {"name": "dpo", "pairs": "sampled"}, "data": {"task": "antonyms"}, "group_size": 2}
    with pytest.raises(UserError, match="'reward' is missing: what scores the samples of the method"):
        check_config(recipe, "my.yaml")


def test_a_checker_that_does_not_exist_lists_those_that_do(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "file.jsonl", ['{"prompt": "p", "completions": ["a", "b"], "answer": "a"}'])
    judge = '{kind: python, function: "vigneron.rubric.ladder_rule:judge"}'
    out = tmp_path / "pairs.jsonl"
    answer = vigneron("label", tmp_path / "file.jsonl", "--judge", judge, "--checker", "lastline", "--out", out)
    assert answer.code == 2
    assert answer.err == "error: unknown checker 'lastline' (did you mean 'last_line'?); or give module:function\n"


def test_best_of_without_a_value_names_by(tmp_path: Path, tiny_folder: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), method={"name": "sft"}, **TINY)
    run = api.train(config, runs=tmp_path / "runs", name="run")
    with pytest.raises(UserError, match="name a run that trained a reward or process model with --by"):
        run.evaluate_by_value(best_of=2)


def test_chat_refuses_a_reward_model_before_it_opens(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [f'{{"prompt": "p{i}", "completion": "x", "score": 0.5}}' for i in range(4)]
    train = write_jsonl(tmp_path / "scores.jsonl", rows)
    config = tiny_config(tiny_folder, train, method={"name": "score_model"}, **TINY)
    run = api.train(config, runs=tmp_path / "runs", name="run")
    answer = vigneron("chat", run.folder, stdin="hello\n")
    assert answer.code == 2
    assert "trained a reward model, which cannot generate text" in answer.err
    assert "/exit ends the chat" not in answer.out


def test_every_loss_of_dpo_is_shown_of_held_out_pairs() -> None:
    for loss in ("dpo", "ipo", "simpo", "orpo"):
        config = {"method": {"name": "dpo", "loss": loss}, "data": {"train": "x.jsonl"}}
        key = f"eval/loss/{loss}"
        assert [one.key for one in headline_metrics(config, [{key: 0.5}])] == [key]


def test_kto_s_accuracy_is_not_one_of_pairs() -> None:
    assert metric("eval/rewards/accuracies").label == "held-out implicit accuracy"
    assert "with KTO, of held-out texts" in metric("eval/rewards/accuracies").meaning
