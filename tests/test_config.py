"""The config: what is refused, with which line, and what fills itself in."""

from typing import Any

import pytest

from support.minimal_recipe import MINIMAL, again, check, line_of, lines_of, method
from vigneron.config import ActorCriticConfig, KlConfig
from vigneron.errors import UserError
from vigneron.recipe import check_config

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
    keys = "temperature, top_k, top_p, mask_truncated, stop, prompt"
    assert line == f"my.yaml: unknown key 'sampling.zzz' (available: {keys})"


def test_a_key_of_another_reward_is_unknown() -> None:
    assert line_of(reward={"kind": "binary", "alpha": 4.0}).startswith("my.yaml: unknown key 'reward.alpha'")


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
        ({"reward": {"kind": "binary", "missing_limit": 2}}, "reward.missing_limit"),
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
    expected = [f"my.yaml: '{key}' is missing" for key in ("method", "data", "reward")]
    assert [line.partition(": what")[0] for line in str(caught.value).splitlines()] == expected
    assert line_of(reward={"kind": "python"}) == "my.yaml: 'reward.function' is missing"


def test_an_unknown_reward_lists_the_kinds() -> None:
    line = line_of(reward={"kind": "semantik"})
    assert line.startswith("my.yaml: reward.kind: one of 'semantic', 'token_f1', 'probability', 'binary', 'python'")
    assert line.endswith("not 'semantik' (did you mean 'semantic'?)")
    line = line_of(method={"name": "grop"})
    assert line.startswith("my.yaml: method.name: one of 'actor_critic', ")
    assert line.endswith(", not 'grop' (did you mean 'grpo'?)")


def test_a_value_of_several_types_is_named_by_its_key_alone() -> None:
    for line in lines_of(model={"lora": {"targets": 5}}):
        assert line.startswith("my.yaml: model.lora.targets: should be")
    (line,) = (line for line in lines_of(model={"lora": {"targets": ["q", 5]}}) if "targets[1]" in line)
    assert line == "my.yaml: model.lora.targets[1]: should be a valid string, not 5"


def test_keys_that_are_no_texts_are_refused() -> None:
    with pytest.raises(UserError, match=r"^my\.yaml: 1: "):
        check_config({**MINIMAL, 1: 2}, "my.yaml")


@pytest.mark.parametrize("data", [{}, {"task": "antonyms", "train": "a.jsonl"}])
def test_data_has_one_source(data: dict[str, str]) -> None:
    assert line_of(data=data) == "my.yaml: data: set either `task` or `train`"


def test_a_task_brings_its_own_held_out_part() -> None:
    assert "`held_out` should be one of held_out, tuning" in line_of(data={"task": "antonyms", "held_out": "a.jsonl"})


def test_a_kind_that_is_missing_or_given_short() -> None:
    dense, others = ("semantic", "token_f1", "probability"), ("model", "preference", "process", "rubric", "combined")
    kinds = (*dense, "binary", "python", "environment", *others)
    wanted = f"my.yaml: 'reward.kind' is missing: one of {', '.join(map(repr, kinds))}"
    assert line_of(reward={"embedder": "lexical"}) == wanted
    assert "reward.kind: one of" in line_of(reward="nosuch")
    line = line_of(scale={"sampling": {"kid": "ray"}})
    assert line == "my.yaml: 'scale.sampling.kind' is missing: one of 'here', 'ray', 'vllm' (instead of 'kid'?)"
    assert line_of(scale={"sampling": {"kind": None}}).endswith("is missing: one of 'here', 'ray', 'vllm'")
    line = line_of(scale={"sampling": "ray"})
    assert line == "my.yaml: scale.sampling: should be a mapping with 'kind', one of 'here', 'ray', 'vllm', not 'ray'"


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


def test_an_adaptive_coefficient_starts_within_its_bounds_and_sees_what_it_adapts_to() -> None:
    method = {"name": "actor_critic", "kl": {"coefficient": 5.0, "adaptive": {"target": 0.8}}}
    assert "outside of `adaptive`'s bounds" in line_of(method=method)
    previous = {"against": "previous", "estimator": "k2", "adaptive": {"target": 0.8}}
    method = {"name": "actor_critic", "clip_epsilon": 0.2, "updates_per_step": 2, "kl": previous}
    assert "successive_kl_every: 1" in line_of(method=method, successive_kl_every=0)


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


# ---------------------------------------------------------------------------------------------- grpo


def grpo(**keys: Any) -> dict[str, Any]:
    return {"method": {"name": "grpo", **keys}, "group_size": 8}


def test_grpo_is_dr_grpo_unless_told_otherwise() -> None:
    method = check(**grpo()).method
    assert (method.clip_epsilon, method.updates_per_step) == (0.2, 1)
    assert (method.aggregation, method.scale_by_std) == ("tokens", False)
    assert (method.kl.coefficient, method.kl.estimator, method.kl.against) == (0.04, "exact", "reference")


def test_a_part_of_grpos_kl_leaves_the_rest_grpos() -> None:
    assert check(**grpo(kl={"estimator": "k3"})).method.kl.coefficient == 0.04
    assert check(method=method(kl={"estimator": "k3"})).method.kl.coefficient == 5e-5


def test_a_group_of_one_has_nothing_to_compare_with() -> None:
    for size in ({}, {"group_size": 1}):
        line = line_of(method={"name": "grpo"}, **size)
        assert "`method: grpo`" in line
        assert "set `group_size` to 2 or more" in line
    assert check(method={"name": "grpo"}, group_size=2).group_size == 2


def test_a_learning_rate_of_a_critic_that_is_not_there_is_refused_and_not_written() -> None:
    line = line_of(**grpo(), optimizer={"critic_lr": 1e-3})
    assert "`optimizer.critic_lr` has no effect with `method: grpo`" in line
    config = check(**grpo(), optimizer={"actor_lr": 1e-3})
    assert again(config) == config
    assert "critic_lr" not in config.model_dump()["optimizer"]
    assert check().model_dump()["optimizer"]["critic_lr"] == 1e-4


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"value_coefficient": 0.5}, "unknown key 'method.value_coefficient'"),
        ({"agregation": "tokens"}, "unknown key 'method.agregation' (did you mean 'aggregation'?)"),
        ({"kl": {"coeficient": 0.1}}, "unknown key 'method.kl.coeficient' (did you mean 'coefficient'?)"),
        ({"clip_epsilon": None}, "method.clip_epsilon: should be a valid number, not None"),
        (
            {"aggregation": "mean"},
            "method.aggregation: should be 'tokens', 'samples' or 'sum_over_samples', not 'mean'",
        ),
    ],
)
def test_grpos_own_keys_are_checked(keys: dict[str, Any], line: str) -> None:
    assert line_of(**grpo(**keys)).startswith(f"my.yaml: {line}")


def test_a_method_is_named() -> None:
    line = line_of(method={"clip_epsilon": 0.2})
    assert line.startswith("my.yaml: 'method.name' is missing: one of 'actor_critic', ")
    assert check(method="grpo", group_size=4).method.name == "grpo"


def test_a_key_of_several_types_is_one_line() -> None:
    line = line_of(microbatch_tokens=0)
    assert line == "my.yaml: microbatch_tokens: should be greater than 0, or should be 'auto', not 0"
    assert (
        line_of(model={"device": "gpu"})
        == "my.yaml: model.device: should be one of auto, cpu, mps, cuda, cuda:N, not 'gpu'"
    )


def test_guards_are_for_rewards_from_zero_up() -> None:
    reward = {"kind": "semantic", "form": "euclidean", "guards": {"max_length_ratio": 2.0}}
    assert "`form: euclidean`" in line_of(reward=reward)
    check(reward={**reward, "guards": {"second_embedder": "minilm"}})


def test_names_with_a_form_are_refused_in_words() -> None:
    wanted = (
        "my.yaml: data.checker: should be one of equality, strict_equality, inclusion, in_order, last_line, "
        "final_number, sentiment_inversion, maze_walk, judge_right, nim_optimal, or module:function, not 'nonsense'"
    )
    assert line_of(data={"task": "antonyms", "checker": "nonsense"}) == wanted
    reward = {"kind": "python", "function": "no_colon"}
    assert line_of(reward=reward) == "my.yaml: reward.function: should have the form module:function, not 'no_colon'"


# ---------------------------------------------------------------------------------------------- preferences

PAIRS = {"data": {"train": "pairs.jsonl"}}


def pairs_line(name: str, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_config({"method": {"name": name}, **PAIRS, **changes}, "my.yaml")
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("name", ["dpo", "reward_model", "preference_model"])
def test_methods_that_read_pairs_sample_nothing_and_have_no_reward(name: str) -> None:
    config = check_config({"method": {"name": name}, **PAIRS}, "my.yaml")
    assert again(config) == config
    assert "reward" not in config.model_dump()
    said = f"has no effect with `method: {name}`"
    assert f"`reward` {said}" in pairs_line(name, reward={"kind": "binary"})
    assert f"`group_size` {said}" in pairs_line(name, group_size=4)
    assert f"`max_new_tokens` {said}" in pairs_line(name, max_new_tokens=4)
    assert f"`parent` {said}" in pairs_line(name, parent={"kind": "local", "model": "smollm2-135m"})


def test_dpos_beta_is_one_without_a_reference_unless_it_is_given() -> None:
    def beta(**keys: Any) -> float:
        config = check_config({"method": {"name": "dpo", **keys}, **PAIRS}, "my.yaml")
        assert again(config) == config
        return config.method.beta  # type: ignore[union-attr]

    assert (beta(), beta(reference_free=True), beta(reference_free=True, beta=0.3)) == (0.1, 1.0, 0.3)


def test_sampled_pairs_need_a_reward_and_two_samples() -> None:
    sampled = {"method": {"name": "dpo", "pairs": "sampled"}}
    assert "set `group_size` to 2 or more" in line_of(**sampled)
    assert line_of(**sampled, group_size=2, reward=None).startswith("my.yaml: reward: should be")
    assert check(**sampled, group_size=2).method.reads == "prompts"


def test_a_scorer_is_trained_whole() -> None:
    assert "leave out `model.lora`" in pairs_line("reward_model", model={"lora": {}})
    check_config({"method": {"name": "dpo"}, **PAIRS, "model": {"lora": {}}}, "my.yaml")


@pytest.mark.parametrize(
    ("keys", "least"),
    [({}, 2), ({"keep": 3}, 4), ({"keep": 3, "min_reward": 0.5}, 3), ({"min_reward": 0.5}, 1)],
)
def test_rejection_sampling_has_something_to_reject(keys: dict[str, Any], least: int) -> None:
    sampling = {"name": "rejection_sampling", **keys}
    assert check(method=sampling, group_size=least).group_size == least
    if least > 1:
        assert f"set `group_size` to {least} or more" in line_of(method=sampling, group_size=least - 1)


def test_a_preference_reward_needs_a_group() -> None:
    reward = {"kind": "preference", "model": "folder"}
    assert "`reward: preference` compares the samples of a prompt" in line_of(reward=reward)
    assert again(check(reward=reward, group_size=2)).reward.model == "folder"  # type: ignore[union-attr]
    assert "'reward.model' is missing" in line_of(reward={"kind": "model"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"name": "reinforce", "decay": 0.5}}, "`decay` has no effect with `baseline: critic`"),
        ({"method": {"name": "reinforce", "baseline": "constant"}}, "`baseline: constant` needs `constant`"),
        ({"method": {"name": "reinforce", "critic": {"clip": 0.1}}}, "`critic.clip` has no effect"),
        ({"method": {"name": "reinforce", "kl": {"adaptive": {}, "coefficient": 0.01}}}, "`kl.adaptive` has no effect"),
        ({"method": {"name": "ppo", "advantage": "eq_12", "lam": 0.9}}, "`lam` has no effect with `advantage: eq_12`"),
        ({"method": {"name": "trpo", "constraint": {}}}, "`constraint` has no effect with `form: penalty`"),
        ({"method": {"name": "trpo", "form": "constraint", "updates_per_step": 2}}, "`updates_per_step` has no effect"),
        (
            {"method": {"name": "trpo", "form": "constraint"}, "optimizer": {"actor_lr": 1e-5}},
            "`optimizer.actor_lr` has no effect with `form: constraint`",
        ),
        (
            {"optimizer": {"offload": True}, "model": {"device": "cpu"}},
            "`optimizer.offload` has no effect with `model.device: cpu`",
        ),
        (
            {"model": {"offload_reference": True, "device": "cpu"}},
            "`model.offload_reference` has no effect with `model.device: cpu`",
        ),
        (
            {"model": {"offload_reference": True, "lora": {}}},
            "`offload_reference` has no effect with `lora`: the reference is the base with the adapter off",
        ),
        (
            {"method": {"name": "sft"}, "reward": {"kind": "preference", "model": "m"}},
            "`reward: preference` compares samples",
        ),
        (
            {"model": {"memory_gb": 8, "device": "cpu"}},
            "`model.memory_gb` has no effect with `model.device: cpu`: it limits a GPU's memory",
        ),
        (
            {"method": {"name": "sft"}, "model": {"cache_gb": 2}, "eval_every": 0},
            "`model.cache_gb` has no effect with `method: sft`, which samples nothing",
        ),
        (
            {"model": {"cache_gb": 2}, "scale": {"sampling": {"kind": "ray"}}},
            "`model.cache_gb` has no effect with `scale.sampling.kind: ray`",
        ),
        (
            {"model": {"cache_gb": 2}, "scale": {"sampling": {"kind": "vllm"}}},
            "`model.cache_gb` has no effect with `scale.sampling.kind: vllm`",
        ),
        (
            {"model": {"memory_gb": 24}, "scale": {"sampling": {"kind": "vllm"}}},
            "`model.memory_gb` limits torch and not vLLM in the training process: leave it out and set `scale",
        ),
        (
            {"method": {"name": "trpo", "form": "constraint"}, "optimizer": {"offload": True}},
            "`optimizer.offload` saves nothing with `form: constraint`, whose policy has no moments",
        ),
        (
            {"method": {"name": "trpo", "form": "constraint"}, "optimizer": {"kind": "adamw_8bit"}},
            "`optimizer.kind` saves nothing with `form: constraint`",
        ),
        (
            {"method": {"name": "score_model"}, "scale": {"sampling": {"kind": "ray"}}},
            "`scale.sampling` has no effect with `method: score_model`, which samples nothing",
        ),
    ],
)
def test_options_without_an_effect_are_named(changes: dict[str, Any], said: str) -> None:
    assert said in line_of(**changes)


def test_a_cache_that_pairs_do_not_use_is_refused_and_read_from_old_runs() -> None:
    """A run's folder may have it: earlier versions wrote what was free."""
    assert "`model.cache_gb` has no effect with `method: dpo`" in pairs_line("dpo", model={"cache_gb": 2})
    stored = {"method": {"name": "dpo"}, **PAIRS, "model": {"cache_gb": 2, "memory_gb": 8, "device": "cpu"}}
    assert check_config(stored, "my.yaml", stored=True).model.cache_gb == 2
    assert check(method={"name": "sft"}, model={"cache_gb": 2}).model.cache_gb == 2  # its evaluations sample


def test_a_reference_that_only_the_reward_uses_can_be_offloaded() -> None:
    method, reward = {"name": "grpo", "kl": {"coefficient": 0.0}}, {"kind": "probability", "by": "reference"}
    keys: Any = {"method": method, "model": {"offload_reference": True}, "group_size": 2}
    assert check(**keys, reward=reward).model.offload_reference
    assert "`model.offload_reference` has no effect" in line_of(**keys)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": {"kind": "adamw_8bit"}}, "`optimizer.kind: adamw_8bit` needs whole weights on every rank"),
        ({"optimizer": {"offload": True}}, "`optimizer.offload` needs whole weights on every rank"),
        ({"model": {"weights": "bfloat16"}}, "`model.weights: bfloat16` needs whole weights on every rank"),
        ({"model": {"offload_reference": True}}, "`model.offload_reference` needs whole weights on every rank"),
    ],
)
def test_sharded_weights_keep_their_moments_in_float32(changes: dict[str, Any], said: str) -> None:
    assert said in line_of(**changes, scale={"shard": 2})
    config = check(**changes)
    assert again(config) == config


def test_a_trust_region_needs_exact_weights() -> None:
    line = line_of(method={"name": "trpo", "form": "constraint"}, model={"weights": "bfloat16"})
    assert "`form: constraint` would lose steps of weights in bfloat16" in line
    check(method={"name": "trpo"}, model={"weights": "bfloat16"})


def test_one_nested_key_leaves_the_others_at_their_defaults() -> None:
    assert check(method={"name": "ppo", "critic": {"network": "own"}}).method.critic.clip == 0.2  # type: ignore[union-attr]
    assert check(method={"name": "reinforce", "kl": {"estimator": "k2"}}).method.kl.coefficient == 0.0  # type: ignore[union-attr]
    adaptive = check(method={"name": "trpo", "penalty": {"adaptive": {"rule": "ppo"}}}).method.penalty.adaptive  # type: ignore[union-attr]
    assert adaptive is not None
    assert adaptive.maximum == 1e4


@pytest.mark.parametrize(
    "method",
    [
        {"name": "reinforce", "baseline": "running_mean", "decay": 0.5},
        {"name": "ppo", "advantage": "eq_12"},
        {"name": "trpo"},
        {"name": "trpo", "form": "constraint"},
    ],
)
def test_the_critic_methods_survive_the_round_trip(method: dict[str, Any]) -> None:
    config = check(method=method)
    assert again(config) == config
