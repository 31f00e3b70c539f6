"""Build the reward of a config."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.config import (
    CombinedRewardConfig,
    ModelRewardConfig,
    PreferenceRewardConfig,
    ProcessRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RubricRewardConfig,
    SemanticRewardConfig,
)
from vigneron.rewards.apply import RewardFunction
from vigneron.sources.placement import IN_PROCESS, ModelPlacement
from vigneron.user_code import python_function


def build_reward(
    config: RewardConfig,
    checker: RewardFunction,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    rubric: Path | None = None,
    notice: Callable[[str], None] = lambda text: None,
    weights: Callable[[str], str] = str,
    check: Callable[[Any], None] = lambda rubric: None,
    placement: ModelPlacement = IN_PROCESS,
) -> RewardFunction:
    """A function with TRL's signature.

    `cache` is the file of cached embeddings, `device` where a reward's model runs, `rubric` the run's copy of the
    rubric file. `weights` resolves the model name of a rubric item. `placement` says where embedders and local judges
    run.
    """
    if isinstance(config, RubricRewardConfig):
        from vigneron.rewards.rubric_build import build_rubric_reward

        return build_rubric_reward(
            config,
            file=rubric,
            cache=cache,
            device=device,
            preflight=cache is not None,
            notice=notice,
            weights=weights,
            check=check,
            placement=placement,
        )
    if isinstance(config, SemanticRewardConfig):
        from vigneron.rewards.semantic import Guards, SemanticReward
        from vigneron.sources.embedding_cache import cached_embedder

        options = config.guards
        embedder = partial(cached_embedder, url=config.url, cache=cache, device=device, placement=placement)
        second = None if options.second_embedder is None else embedder(options.second_embedder)
        guards = Guards(options.input_weight, options.max_length_ratio, options.max_repetition, second)
        return SemanticReward(
            embedder(config.embedder), alpha=config.alpha, form=config.form, clean=config.clean, guards=guards
        )
    if isinstance(config, CombinedRewardConfig):
        from vigneron.rewards.combined import CombinedReward

        build = partial(build_reward, checker=checker, cache=cache, device=device, notice=notice, placement=placement)
        parts = [(part.kind, build(part)) for part in config.rewards]
        return CombinedReward(parts, config.weights or [1.0] * len(parts), config.combine)
    if isinstance(config, PythonRewardConfig):
        return python_function(config.function, "reward.function")
    if isinstance(config, ModelRewardConfig | PreferenceRewardConfig | ProcessRewardConfig):
        from vigneron.rewards.model import ModelReward, PreferenceReward, load_reward_scorer
        from vigneron.rewards.process import ProcessReward

        load = placement.scorer or partial(load_reward_scorer, notice=notice)
        if isinstance(config, ModelRewardConfig):
            return ModelReward(load(config.model, "reward", device))
        if isinstance(config, ProcessRewardConfig):
            scorer, at_steps = load(config.model, "process", device), config.rewards_at == "steps"
            return ProcessReward(scorer, config.separator, config.combine, at_steps, config.shape)
        return PreferenceReward(load(config.model, "first_is_better", device), config.ranking)
    return checker
