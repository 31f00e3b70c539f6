"""The cases of `benchmarks.same_runs`: every method in its variants, LoRA, resumed runs, ranks, folders handed over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Recipe = dict[str, Any]
Stage = dict[str, Any]

SHARED = "../shared"
BASE: Recipe = {
    "recipe": "tiny",
    "model": {"name": f"{SHARED}/llama", "device": "cpu"},
    "data": {"train": f"{SHARED}/words-train.jsonl", "held_out": f"{SHARED}/words-held-out.jsonl"},
    "reward": {"kind": "python", "function": "equality_functions:vowels"},
    "optimizer": {"actor_lr": 1e-2, "schedule": "cosine", "warmup_steps": 1},
    "steps": 4,
    "prompts_per_step": 3,
    "group_size": 4,
    "max_new_tokens": 6,
    "eval_every": 2,
    "save_every": 2,
}
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
RUBRIC = {
    "kind": "rubric",
    "file": f"{SHARED}/rubric.yaml",
    "held_out_file": f"{SHARED}/held-out-rubric.yaml",
    "judge": {"kind": "python", "function": "equality_functions:judge"},
}
MIX = {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2}
SFT: Recipe = {"method": {"name": "sft"}, "reward": {"kind": "binary"}, "group_size": None}


@dataclass(frozen=True)
class Case:
    """Stages that both checkouts go through, in runs whose folders are then compared."""

    name: str
    stages: tuple[Stage, ...]
    processes: bool = False
    """By the command line, in processes of their own: several ranks, a kill."""
    handed_over: bool = False
    """The first stage is OLD's alone; NEW goes on with a copy of OLD's folder."""

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(stage["run"] for stage in self.stages))


def recipe(changes: Mapping[str, Any]) -> Recipe:
    """The base with changes; sections are merged, `method` and `reward` replaced, None leaves a key out."""
    merged = dict(BASE)
    for key, value in changes.items():
        inner = key in ("model", "data", "optimizer") and isinstance(value, dict)
        merged[key] = without_none({**BASE[key], **value}) if inner else value
    return without_none(merged)


def without_none(section: Recipe) -> Recipe:
    return {key: value for key, value in section.items() if value is not None}


def train(run: str, changes: Mapping[str, Any], *arguments: str, code: int = 0) -> Stage:
    """`arguments` are the command line's, and `code` its exit status; both of cases with processes of their own."""
    return {"do": "train", "run": run, "config": recipe(changes), "arguments": list(arguments), "code": code}


def resume(run: str, *overrides: str, arguments: tuple[str, ...] = ()) -> Stage:
    return {"do": "resume", "run": run, "overrides": list(overrides), "arguments": list(arguments), "code": 0}


def evaluate(run: str) -> Stage:
    return {"do": "evaluate", "run": run}


def command(run: str, verb: str) -> Stage:
    return {"do": "command", "run": run, "arguments": [verb, f"runs/{run}"]}


def data(name: str) -> dict[str, str]:
    return {"train": f"{SHARED}/{name}-train.jsonl", "held_out": f"{SHARED}/{name}-held-out.jsonl"}


def method(name: str, **keys: Any) -> Recipe:
    return {"method": {"name": name, **keys}}


def grpo(**keys: Any) -> Recipe:
    return method("grpo", **keys)


def pairs(name: str, **keys: Any) -> Recipe:
    """Methods that read preference pairs sample nothing."""
    none = {"reward": None, "group_size": None, "max_new_tokens": None}
    return {**method(name, **keys), **none, "data": data("pairs")}


def grape(**keys: Any) -> Recipe:
    return {**method("grape", **keys), "reward": RUBRIC}


CRITIC = {"critic_lr": 1e-2}
TRAINED: dict[str, Recipe] = {
    "actor_critic": {**method("actor_critic", kl={"coefficient": 1e-3}), "optimizer": CRITIC},
    "actor_critic-faithful": {**method("actor_critic", faithful=True), "optimizer": CRITIC},
    "actor_critic-clipped": method("actor_critic", clip_epsilon=0.2, updates_per_step=2),
    "dpo-recorded": pairs("dpo"),
    "dpo-sampled": method("dpo", pairs="sampled"),
    "grape-truncated": grape(mix=MIX, correction="truncated", updates_per_step=2),
    "grape-topr": grape(mix=MIX, correction="topr", baseline="origin", demonstration_gamma=0.1, updates_per_step=2),
    "grape-on-policy": grape(self_distillation={"sees": "best"}, updates_per_step=2),
    "grape-sequence": grape(mix=MIX, level="sequence", aggregation="sum_over_samples", updates_per_step=2),
    "grpo": grpo(kl={"coefficient": 0.04, "estimator": "exact"}),
    "ppo-gae": {**method("ppo", updates_per_step=2, minibatches=2, gamma=0.9), "optimizer": CRITIC},
    "ppo-own-critic": method("ppo", updates_per_step=2, critic={"network": "own"}),
    "reinforce-critic": method("reinforce", baseline="critic", entropy_coefficient=0.01),
    "rejection_sampling": method("rejection_sampling", keep=2, updates_per_round=2),
    "sft": SFT,
    "trpo-penalty": method("trpo", form="penalty", updates_per_step=2),
    "trpo-constraint": {**method("trpo", form="constraint"), "optimizer": {"actor_lr": None}},
}
"""Run with full weights, and again with LoRA."""

FULL: dict[str, Recipe] = {
    "dpo-reference-free": method("dpo", pairs="sampled", reference_free=True),
    "grape-generation-prompt": grape(mix={"fresh": 0.5, "revised": 0.5}, trained_under="generation_prompt"),
    "grape-proportion": grape(mix={**MIX, "by": "proportion"}, baseline="group", kl={"coefficient": 0.0}),
    "grpo-kl-k2": grpo(kl={"coefficient": 0.04, "estimator": "k2"}, updates_per_step=2),
    "grpo-kl-k3": grpo(kl={"coefficient": 0.04, "estimator": "k3"}, updates_per_step=2),
    "grpo-kl-off": grpo(kl={"coefficient": 0.0}),
    "grpo-kl-previous": grpo(kl={"coefficient": 0.04, "estimator": "k2", "against": "previous"}, updates_per_step=2),
    "grpo-kl-adaptive": grpo(kl={"coefficient": 0.04, "adaptive": {"target": 0.001}}),
    "grpo-updates": grpo(updates_per_step=2),
    "grpo-std": grpo(scale_by_std=True, aggregation="samples"),
    "grpo-eq-14": grpo(aggregation="sum_over_samples", updates_per_step=2),
    "grpo-resample": {**grpo(resample=2), "reward": {"kind": "python", "function": "equality_functions:any_vowel"}},
    "grpo-binary": {**grpo(), "reward": {"kind": "binary"}},
    "grpo-async-reward": {**grpo(), "reward": {"kind": "python", "function": "equality_functions:vowels_later"}},
    "grpo-semantic": {**grpo(), "reward": {"kind": "semantic", "guards": {"input_weight": 0.5, "max_repetition": 0.9}}},
    "grpo-rubric": {**grpo(), "reward": RUBRIC},
    "grpo-missing": {
        **grpo(),
        "reward": {"kind": "python", "function": "equality_functions:with_missing", "missing_limit": 0.9},
        "skip_nonfinite": 2,
    },
    "grpo-sampling": {**grpo(), "sampling": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "mask_truncated": True}},
    "grpo-microbatch": {**grpo(updates_per_step=2), "microbatch_tokens": 40},
    "grpo-checkpointing": {**grpo(), "model": {"activation_checkpointing": True}},
    "grpo-bfloat16": {**grpo(), "model": {"dtype": "bfloat16"}},
    "grpo-keep-best": {**grpo(), "keep_best": "eval/reward", "keep_last": 1},
    "grpo-task": {**grpo(), "data": {"task": "antonyms", "train": None, "held_out": "tuning"}},
    "grpo-gpt2": {**grpo(), "model": {"name": f"{SHARED}/gpt2"}},
    "grpo-qwen": {**grpo(), "model": {"name": f"{SHARED}/qwen"}},
    "grpo-mistral": {**grpo(), "model": {"name": f"{SHARED}/mistral"}},
    "ppo-eq-12": method("ppo", advantage="eq_12", updates_per_step=2, minibatches=2),
    "ppo-adaptive": method("ppo", kl={"coefficient": 0.05, "adaptive": {"target": 0.001, "rule": "ppo"}}),
    "reinforce-none": method("reinforce", baseline="none"),
    "reinforce-constant": method("reinforce", baseline="constant", constant=0.3),
    "reinforce-running-mean": method("reinforce", baseline="running_mean", decay=0.5),
    "reinforce-kl": method("reinforce", baseline="none", kl={"coefficient": 0.05}),
    "rejection-min-reward": method("rejection_sampling", keep=2, min_reward=0.2),
    "sft-packing": {**SFT, **method("sft", packing=True)},
    "sft-text": {**SFT, **method("sft", loss_on="text", aggregation="sum_over_samples")},
    "sft-chat": {**SFT, "data": data("chats")},
    "sft-minted": {**SFT, "data": data("chats"), "model": {"chat": "minted"}},
    "score_model": {**method("score_model"), "reward": None, "group_size": None, "data": data("scores")},
    "trpo-adaptive": method("trpo", penalty={"adaptive": {"rule": "ppo"}}, critic={"network": "own"}),
    "trpo-constraint-max": {
        **method("trpo", form="constraint", constraint={"over": "max"}),
        "optimizer": {"actor_lr": None},
    },
}
HANDED_OVER = ("dpo-recorded", "grape-truncated", "grpo", "ppo-own-critic", "reinforce-running-mean", "sft")
RESUMED = ("grape-truncated", "grpo-kl-adaptive", "ppo-gae", "sft-packing", "trpo-constraint")
KILLING = {"kind": "python", "function": "equality_functions:killing"}
RANKS: dict[str, Recipe] = {
    "grpo": grpo(updates_per_step=2),
    "ppo": TRAINED["ppo-gae"],
    "dpo": pairs("dpo"),
    "sft": SFT,
    "grpo-shard": {**grpo(), "scale": {"shard": 2}},
}


def with_lora(changes: Recipe) -> Recipe:
    return {**changes, "model": {**changes.get("model", {}), **LORA}}


def all_cases() -> dict[str, Case]:
    named = TRAINED | FULL
    cases = [Case(name, (train(name, changes),)) for name, changes in named.items()]
    cases += [Case(f"{name}-lora", (train(f"{name}-lora", with_lora(c)),)) for name, c in TRAINED.items()]
    cases += [scorer_case("reward_model", "model"), scorer_case("preference_model", "preference")]
    cases += [resumed_case(name, named[name]) for name in RESUMED]
    cases += [handed_over_case(name, named[name]) for name in HANDED_OVER]
    cases.append(handed_over_case("grpo-lora", with_lora(named["grpo"])))
    cases.append(handed_over_case("reward_model", pairs("reward_model")))
    killed = train("killed", {**grpo(), "reward": KILLING}, code=-9)
    cases.append(Case("killed", (killed, resume("killed")), processes=True))
    cases += [ranks_case(name, changes) for name, changes in RANKS.items()]
    return {case.name: case for case in cases}


def scorer_case(name: str, kind: str) -> Case:
    """A scorer, and a policy that is rewarded by it."""
    rewarded = {**grpo(), "reward": {"kind": kind, "model": f"runs/{name}"}}
    return Case(name, (train(name, pairs(name)), train(f"{name}-used", rewarded)))


def resumed_case(name: str, changes: Recipe) -> Case:
    run = f"resumed-{name}"
    return Case(run, (train(run, {**changes, "steps": 2}), resume(run, "steps=4")))


def handed_over_case(name: str, changes: Recipe) -> Case:
    run = f"handed-over-{name}"
    stages = (
        train(run, {**changes, "steps": 2}),
        evaluate(run),
        command(run, "eval"),
        command(run, "report"),
        resume(run, "steps=4"),
    )
    return Case(run, stages, handed_over=True)


def ranks_case(name: str, changes: Recipe) -> Case:
    """Two ranks, each loading torch anew: only sharded weights, whose files are their own, are resumed as well."""
    run, two = f"ranks-{name}", ("--nproc", "2")
    if name != "grpo-shard":
        return Case(run, (train(run, changes, *two),), processes=True)
    stages = train(run, {**changes, "steps": 2}, *two), resume(run, "steps=4", arguments=two)
    return Case(run, stages, processes=True)
