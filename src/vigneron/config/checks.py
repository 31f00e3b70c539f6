"""Checks between the sections of a config: what contradicts itself, and what has no effect."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vigneron.config.curricula import LossCurriculumConfig, SuccessCurriculumConfig
from vigneron.config.environments import GameConfig, PlayerConfig
from vigneron.config.group import GrapeConfig
from vigneron.config.kl import KlConfig, PenaltyConfig
from vigneron.config.methods import MethodConfig
from vigneron.config.options import MethodOptions
from vigneron.config.parts import SamplingConfig
from vigneron.config.phases import engine_samples, sampling_phase
from vigneron.config.rewards import asks_reference, embeds_here, judges_here
from vigneron.config.scale import ScaleConfig
from vigneron.config.top_level import TopLevel

METHOD = TypeAdapter[MethodOptions](MethodConfig)


def with_default_reward(given: Any, context: Any) -> Any:
    """A recipe as it was read. Without a reward, completions of a method that does not learn from one are scored by the
    checker."""
    if not isinstance(given, Mapping):
        return given
    try:
        method = METHOD.validate_python(given.get("method"), context=context)
    except ValidationError:  # reported where the method is parsed; errors that follow from it are not
        method_known = isinstance(given.get("method"), Mapping) and "name" in given["method"]
        return {"reward": {"kind": "binary"}, **given} if method_known else given
    if not method.imported:
        return {"reward": {"kind": "binary"}, **given}
    if method.reads == "pairs" and given.get("reward") is not None:
        raise ValueError(
            f"`reward` has no effect with {_named(method)}, which trains on preference pairs: leave it out"
        )
    needs_none = (method.reads != "prompts" or not method.learns_from_reward) and given.get("reward") is None
    return {**given, "reward": {"kind": "binary"}} if needs_none else given


def what_is_adapted_to_is_measured(config: TopLevel) -> None:
    for kl in (getattr(config.method, key, None) for key in ("kl", "penalty")):
        if not isinstance(kl, KlConfig | PenaltyConfig):
            continue
        if not (kl.adaptive and kl.against == "previous" and config.successive_kl_every != 1):
            continue
        raise ValueError("an adaptive KL against the previous policy needs `successive_kl_every: 1`")


def the_best_can_be_known(config: TopLevel) -> None:
    if config.keep_best is None:
        return
    if not config.keep_best.startswith("eval/"):
        raise ValueError("`keep_best` is the name of a held-out metric, such as eval/reward")
    if not config.eval_every:
        raise ValueError("`keep_best` compares held-out metrics: set `eval_every`")
    if not config.save_every or config.save_every % config.eval_every:
        raise ValueError(
            "`keep_best` compares checkpoints that were evaluated: set `save_every` to a multiple of `eval_every`"
        )


def given_texts_are_not_sampled(config: TopLevel) -> None:
    inert: dict[str, Any] = {}
    if config.method.reads != "prompts":
        # Held-out completions are sampled all the same, unless the method reads pairs or trains a scorer.
        evaluates = config.method.reads != "pairs" and config.method.trains == "policy"
        inert = {"group_size": 1, "sampling": SamplingConfig(stop=config.sampling.stop if evaluates else [])}
    if config.method.reads == "pairs":
        inert |= {"max_new_tokens": 16, "parent": None}
    if config.method.reads == "recorded":
        inert |= {"parent": None}
    for key, default in inert.items():
        if getattr(config, key) != default:
            raise ValueError(f"`{key}` has no effect with {_named(config.method)}, which samples nothing: leave it out")


def messages_are_made_of_prompts(config: TopLevel) -> None:
    if config.data.chat and config.method.reads != "prompts":
        raise ValueError(
            f"`data.chat` has no effect with {_named(config.method)}, which reads whole texts: give them as messages"
        )


def a_scorer_is_trained_whole(config: TopLevel) -> None:
    if config.method.trains == "scorer" and config.model.lora is not None:
        raise ValueError(f"{_named(config.method)} trains the whole model: leave out `model.lora`")


def a_group_can_be_compared(config: TopLevel) -> None:
    compared, reward = config.reward.smallest_group, f"`reward: {config.reward.kind}`"
    if config.method.reads != "prompts" and compared > 1:
        raise ValueError(f"{reward} compares samples, but {_named(config.method)} samples nothing: use another")
    least = max(config.method.smallest_group, compared)
    if config.group_size < least:
        who = _named(config.method) if config.method.smallest_group == least else reward
        raise ValueError(
            f"{who} compares the samples of a prompt with each other: set `group_size` to {least} or more (8 is usual)"
        )


def an_origin_can_be_compared(config: TopLevel) -> None:
    """One response alone of its origin, in every group, would have advantage 0 for the whole run."""
    method = config.method
    if not isinstance(method, GrapeConfig) or method.baseline == "group" or "baseline" not in method.model_fields_set:
        return
    least = method.smallest_group_by_origin
    if method.mix.by == "proportion" and config.group_size < least:
        raise ValueError(
            "`baseline: origin` needs two responses of an origin in a group: set `group_size` to "
            f"{least} or more, `method.mix.by: probability`, or `method.baseline: group`"
        )


def win_rates_are_given(config: TopLevel) -> None:
    if not config.method.needs_win_rates:
        return
    needed = (
        f"{_named(config.method)} needs win rates from 0 to 1: set `reward: {{kind: preference, model: …}}` with "
        "`ranking: win_rate`, or a `python` function that returns them"
    )
    if not config.reward.may_be_win_rate:
        tournament = config.reward.kind == "preference"
        raise ValueError(f"{needed}, not `{'ranking: tournament' if tournament else f'kind: {config.reward.kind}'}`")
    if config.reward.overlong is not None:
        raise ValueError(f"{needed}, without `overlong`")


def rewards_of_prompts_can_be_compared(config: TopLevel) -> None:
    if config.reward.smallest_group == 1:
        return
    curriculum, who, verdict = config.curriculum, None, ""
    if isinstance(curriculum, LossCurriculumConfig):
        who = "`curriculum.by: loss`"
    if isinstance(curriculum, SuccessCurriculumConfig) and curriculum.measure == "reward":
        who, verdict = "`curriculum.by: success`", ", or the checker's verdicts with `curriculum.measure: verdict`"
    if config.method.compares_prompts:
        who, verdict = _named(config.method), ""
    if who is not None:
        raise ValueError(
            f"{who} compares the rewards of prompts, but `reward: {config.reward.kind}` compares the samples of one "
            f"prompt: use a reward that scores each sample by itself{verdict}"
        )


def step_rewards_are_used(config: TopLevel) -> None:
    at_steps = [part for part in config.reward.parts if getattr(part, "rewards_at", None) == "steps"]
    if at_steps and config.reward not in at_steps:
        raise ValueError("`rewards_at: steps` has no effect in a combined reward: leave it out")
    if at_steps and config.method.imported and not config.method.takes_step_rewards:
        raise ValueError(
            f"`reward.rewards_at: steps` has no effect with {_named(config.method)}: it needs `method: ppo` with "
            "`advantage: gae`"
        )


def an_environment_is_there(config: TopLevel) -> None:
    kinds = {part.kind for part in config.reward.parts}
    if config.environment is None:
        if "environment" in kinds:
            raise ValueError("`reward.kind: environment` needs an `environment` section, which gives the rewards")
        return
    if config.method.reads == "pairs":
        raise ValueError(f"`environment` has no effect with {_named(config.method)}, which samples nothing")
    if "process" in kinds or "probability" in kinds:
        (kind,) = sorted(kinds & {"process", "probability"})[:1]
        raise ValueError(f"`reward.kind: {kind}` reads one answer, not a conversation with an `environment`")
    if isinstance(config.environment, GameConfig):
        _a_game_can_be_played(config, config.environment.players)
    if config.rollout is not None:
        raise ValueError("`environment` has no effect beside a `rollout` of your own: leave one of them out")


def _a_game_can_be_played(config: TopLevel, players: Mapping[str, PlayerConfig]) -> None:
    game = "`environment.kind: game`"
    if isinstance(config.curriculum, LossCurriculumConfig | SuccessCurriculumConfig):
        raise ValueError(
            f"`curriculum.by: {config.curriculum.by}` needs one reward for each row, and a game has one for each role"
        )
    if config.model.chat == "minted" and any(player.kind == "reference" for player in players.values()):
        raise ValueError(
            "`kind: reference` needs a model that knows conversations, and `model.chat: minted` teaches them: train by "
            "SFT first, and let `model.name` be that run"
        )
    if config.sampling.prompt is not None:
        raise ValueError("`sampling.prompt` has no effect on a game, which says what its roles read: leave it out")
    if config.method.compares_prompts:
        raise ValueError(
            f"{_named(config.method)} needs one reward for each sample of a row, and {game} has one for each role: use "
            "another method that samples, as grpo"
        )
    if getattr(config.method, "name", "") == "grape":
        raise ValueError(
            f"{game} cannot be used with {_named(config.method)}: use another method that samples, as grpo"
        )
    if getattr(config.method, "resamples", 0):
        raise ValueError(f"{game} cannot be used with dynamic sampling, which replaces groups: a row has several")


def a_step_has_enough_rows(config: TopLevel) -> None:
    if config.prompts_per_step < config.method.smallest_step:
        raise ValueError(f"{_named(config.method)} needs `prompts_per_step` of {config.method.smallest_step} or more")


def the_overlong_penalty_has_an_effect(config: TopLevel) -> None:
    overlong = config.reward.overlong
    if overlong is not None and config.method.reads != "prompts":
        raise ValueError(f"`reward.overlong` has no effect with {_named(config.method)}, which samples nothing")
    if overlong is not None and overlong.buffer > config.written_tokens:
        raise ValueError(f"`reward.overlong.buffer` is above the longest completion ({config.written_tokens})")


def the_policy_can_score(config: TopLevel) -> None:
    if not any(part.kind == "probability" for part in config.reward.parts):
        return
    scale, key = config.scale, "`reward.kind: probability` passes texts through the model in training"
    if scale.shard > 1:
        raise ValueError(f"{key} on rank 0 alone, which sharded weights cannot: set `scale.shard` to 1")
    if scale.staleness:
        raise ValueError(f"{key}, which must not change meanwhile: set `scale.staleness` to 0")
    if config.method.trains != "policy":
        raise ValueError(f"{key}, but {_named(config.method)} trains no policy: use another reward")


def something_is_before_an_answer(config: TopLevel) -> None:
    by_line = any(getattr(part, "answer_after", "") is None for part in config.reward.parts)
    if by_line and "\n" in config.sampling.stop:
        raise ValueError(
            "`reward.kind: probability` reads what is before a completion's last line, and `sampling.stop` ends "
            "completions with their first: set `reward.answer_after`, or another stop text"
        )


def pools_have_work(config: TopLevel) -> None:
    scale, reward = config.scale, config.reward
    if scale.sampling.kind != "here" and config.method.reads == "pairs":
        raise ValueError(
            f"`scale.sampling` has no effect with {_named(config.method)}, which samples nothing: leave it out"
        )
    for key in ("correction_limit", "correction_mode", "correction_level"):
        inert = config.method.weighs_samples or not config.method.has_advantages
        if inert and getattr(scale, key) != ScaleConfig.model_fields[key].default:
            why = "weighs its samples itself" if config.method.weighs_samples else "has no advantages to weight"
            raise ValueError(f"`scale.{key}` has no effect with {_named(config.method)}, which {why}: leave it out")
    if config.sampling.prompt is not None and (scale.staleness or scale.sampling.kind == "vllm"):
        raise ValueError(
            "`sampling.prompt` gives log-probs after another prompt, so nothing corrects for `scale.staleness` or "
            "vLLM: leave it out, or sample with `scale.sampling.kind: here` or `ray` and `staleness: 0`"
        )
    if scale.embedding is not None and not embeds_here(reward):
        raise ValueError("`scale.embedding` has no effect: this reward uses no local embedder: leave it out")
    if scale.judging is not None and not judges_here(reward):
        raise ValueError("`scale.judging` has no effect: this reward uses no local judge: leave it out")


def responses_are_drawn_as_a_rubric_says(config: TopLevel) -> None:
    if config.method.needs_rubric and config.reward.kind != "rubric":
        raise ValueError(f"{_named(config.method)} uses a rubric's prompts and feedback: set `reward.kind: rubric`")
    if config.method.needs_rubric and config.sampling.prompt is not None:
        raise ValueError(
            f"`sampling.prompt` has no effect with {_named(config.method)}, whose rubric has prompts: leave it out"
        )
    if config.method.needs_rubric and config.rollout is not None:
        raise ValueError(
            f"`rollout` has no effect with {_named(config.method)}, which has its own rollout: leave it out"
        )


def a_servers_parent_reads_as_the_child_samples(config: TopLevel) -> None:
    if getattr(config.method, "url", None) is not None and config.sampling.temperature != 1.0:
        raise ValueError(
            "`method.url`: vLLM's log-probs of a text are those at temperature 1: set `sampling.temperature` to 1"
        )


def a_trained_reward_is_here(config: TopLevel) -> None:
    if not config.method.trains_its_reward:
        return
    if config.scale.staleness:
        raise ValueError(
            f"{_named(config.method)} rewards samples by a model that is trained: set `scale.staleness` to 0"
        )
    if config.scale.shard > 1:
        raise ValueError(f"{_named(config.method)} trains a second model, which is not sharded: set `scale.shard` to 1")


def the_child_is_trained(config: TopLevel) -> None:
    warmup = getattr(config.method, "warmup", 0)
    if warmup and warmup >= config.steps:
        raise ValueError(
            f"`method.warmup: {warmup}` leaves none of {config.steps} steps to train the model in: set it lower, or "
            "`steps` higher"
        )


def a_curriculum_can_measure(config: TopLevel) -> None:
    curriculum = config.curriculum
    if isinstance(curriculum, SuccessCurriculumConfig) and config.method.imported and config.method.reads != "prompts":
        raise ValueError(
            f"`curriculum.by: success` needs rewards, but {_named(config.method)} samples nothing: use `by: loss` or "
            "`by: level`"
        )
    replaces = getattr(config.method, "resamples", 0) > 0
    if isinstance(curriculum, SuccessCurriculumConfig) and curriculum.measure == "verdict" and replaces:
        raise ValueError(
            "`curriculum.measure: verdict` has no verdicts of the groups that `method.resample` replaces: use "
            "`measure: reward`"
        )
    if (
        isinstance(curriculum, LossCurriculumConfig)
        and config.method.reads != "prompts"
        and not config.method.loss_falls
    ):
        raise ValueError(
            f"`curriculum.by: loss` has no order with {_named(config.method)}, whose loss is lowest for texts with "
            "bad rewards: use `by: level`"
        )
    if isinstance(curriculum, LossCurriculumConfig) and config.scale.staleness:
        raise ValueError("`curriculum.by: loss` measures all rows with the current weights: set `scale.staleness` to 0")


def actor_lr_has_an_effect(config: TopLevel) -> None:
    if not config.method.steps_by_gradient and "actor_lr" in config.optimizer.model_fields_set:
        raise ValueError("`optimizer.actor_lr` has no effect with `form: constraint`, which has no learning rate")


def a_trust_region_needs_whole_weights(config: TopLevel) -> None:
    if not config.method.steps_by_gradient and config.scale.shard > 1:
        raise ValueError(
            "`form: constraint` differentiates twice, which FSDP2 cannot: set `scale.shard` to 1 (every rank has "
            "its own copy of the weights), or use `form: penalty`"
        )


def four_bits_are_supported(config: TopLevel) -> None:
    if config.model.weights != "4bit":
        return
    if config.scale.shard > 1:
        raise ValueError("`model.weights: 4bit` is not supported with sharding: set `scale.shard` to 1")
    if config.scale.sampling.kind == "vllm":
        raise ValueError("`model.weights: 4bit` is not supported with vLLM: set `scale.sampling.kind` to here or ray")


def critic_lr_has_an_effect(config: TopLevel) -> None:
    if config.method.imported and not config.method.has_critic and "critic_lr" in config.optimizer.model_fields_set:
        raise ValueError(f"`optimizer.critic_lr` has no effect with {_named(config.method)}: it has no critic")


def weights_and_moments_can_be_held_so(config: TopLevel) -> None:
    optimizer, model = config.optimizer, config.model
    if config.scale.shard > 1:
        chosen = {
            "optimizer.kind: adamw_8bit": optimizer.kind == "adamw_8bit",
            "optimizer.offload": optimizer.offload,
            "model.offload_reference": model.offload_reference,
            "model.weights: bfloat16": model.weights == "bfloat16",
        }
        for key in (key for key, is_chosen in chosen.items() if is_chosen):
            raise ValueError(f"`{key}` needs whole weights on every rank: set `scale.shard` to 1, or leave it out")
    if not config.method.steps_by_gradient and model.weights == "bfloat16":
        raise ValueError(
            "`form: constraint` would lose steps of weights in bfloat16: set `model.weights` to auto, or use "
            "`form: penalty`"
        )


def what_is_offloaded_has_elsewhere_to_go(config: TopLevel) -> None:
    device = config.model.device
    offloaded = {
        "optimizer.offload": config.optimizer.offload,
        "model.offload_reference": config.model.offload_reference,
    }
    for key in (key for key, is_set in offloaded.items() if is_set and device in ("cpu", "mps")):
        raise ValueError(f"`{key}` has no effect with `model.device: {device}`: leave it out")
    used = config.method.uses_reference or asks_reference(config.reward)
    if config.model.offload_reference and config.method.imported and not used:
        raise ValueError("`model.offload_reference` has no effect: the method, as it is set, uses no reference")


def limits_of_memory_have_an_effect(config: TopLevel) -> None:
    model = config.model
    if model.memory_gb is not None and model.device in ("cpu", "mps"):
        raise ValueError(
            f"`model.memory_gb` has no effect with `model.device: {model.device}`: it limits a GPU's memory; "
            "leave `model.device` out to plan a run for a GPU that is not here"
        )
    sampling = config.scale.sampling
    if model.memory_gb is not None and sampling.kind == "vllm" and sampling.url is None:
        raise ValueError(
            "`model.memory_gb` limits torch and not vLLM in the training process: leave it out and set "
            "`scale.sampling.memory_share`, or sample by `scale.sampling.kind: here`, or by a server"
        )
    if model.cache_gb is None or not config.method.imported or engine_samples(config):
        return
    if sampling_phase(config) is None:
        raise ValueError(
            f"`model.cache_gb` has no effect with {_named(config.method)}, which samples nothing: leave it out"
        )
    raise ValueError(f"`model.cache_gb` has no effect with `scale.sampling.kind: {config.scale.sampling.kind}`")


def a_constraint_has_no_moments(config: TopLevel) -> None:
    """But those of the critic, which are few unless it is a network of its own."""
    method, optimizer = config.method, config.optimizer
    if method.steps_by_gradient or method.has_own_critic:
        return
    for key, chosen in (("offload", optimizer.offload), ("kind", optimizer.kind != "adamw")):
        if chosen:
            raise ValueError(f"`optimizer.{key}` saves nothing with `form: constraint`, whose policy has no moments")


def a_scorer_samples_nothing(config: TopLevel) -> None:
    if config.method.trains == "scorer" and config.scale.sampling.kind != "here":
        raise ValueError(
            f"`scale.sampling` has no effect with {_named(config.method)}, which samples nothing: leave it out"
        )


CHECKS = (
    what_is_adapted_to_is_measured,
    the_best_can_be_known,
    given_texts_are_not_sampled,
    messages_are_made_of_prompts,
    a_scorer_is_trained_whole,
    a_group_can_be_compared,
    rewards_of_prompts_can_be_compared,
    step_rewards_are_used,
    an_environment_is_there,
    a_step_has_enough_rows,
    the_overlong_penalty_has_an_effect,
    the_policy_can_score,
    pools_have_work,
    responses_are_drawn_as_a_rubric_says,
    a_servers_parent_reads_as_the_child_samples,
    a_trained_reward_is_here,
    a_curriculum_can_measure,
    actor_lr_has_an_effect,
    a_trust_region_needs_whole_weights,
    four_bits_are_supported,
    critic_lr_has_an_effect,
    weights_and_moments_can_be_held_so,
)
CHECKS_OF_NEW_RUNS = (
    the_child_is_trained,
    an_origin_can_be_compared,
    win_rates_are_given,
    what_is_offloaded_has_elsewhere_to_go,
    limits_of_memory_have_an_effect,
    a_constraint_has_no_moments,
    a_scorer_samples_nothing,
    something_is_before_an_answer,
)
"""Added when runs existed that they refuse, or refusing what a run's config holds after it has been resolved: those
can still be read and resumed."""


def without_inert_keys(config: TopLevel, written: dict[str, Any]) -> dict[str, Any]:
    """A written config without keys that would be refused when it is read again."""
    if not config.method.imported:
        return written
    if config.method.reads == "pairs":
        written.pop("reward", None)
    if not config.method.has_critic:
        written.get("optimizer", {}).pop("critic_lr", None)
    if not config.method.steps_by_gradient:
        written.get("optimizer", {}).pop("actor_lr", None)
    return written


def _named(method: MethodOptions) -> str:
    return f"`method: {getattr(method, 'name', '')}`"
