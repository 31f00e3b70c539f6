"""Build the reward of a config."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vigneron.config import (
    CombinedRewardConfig,
    EnvironmentRewardConfig,
    ModelRewardConfig,
    PreferenceRewardConfig,
    ProbabilityRewardConfig,
    ProcessRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RubricRewardConfig,
    SemanticRewardConfig,
    TokenF1RewardConfig,
)
from vigneron.data.prompts import Row, completion_text
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.rewards.apply import RewardFunction
from vigneron.sources.placement import IN_PROCESS, ModelPlacement
from vigneron.user_code import python_function

if TYPE_CHECKING:
    from vigneron.sources.embedding_cache import CachedEmbedder

NOTED_ROWS = 500
"""The first rows, whose answers the embedder should know."""


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
    rows: Sequence[Row] = (),
) -> RewardFunction:
    """A function with TRL's signature.

    `cache` is the file of cached embeddings, `device` where a reward's model runs, `rubric` the run's copy of the
    rubric file. `weights` resolves the model name of a rubric item. `placement` says where embedders and local judges
    run. `rows` are the training rows, whose answers a contrastive reward compares with.
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
        from vigneron.rewards.semantic import Contrast, Guards, SemanticReward
        from vigneron.sources.embedding_cache import cached_embedder

        options = config.guards
        embedder = partial(cached_embedder, url=config.url, cache=cache, device=device, placement=placement)
        second = None if options.second_embedder is None else embedder(options.second_embedder)
        guards = Guards(
            options.input_weight, options.max_length_ratio, options.max_repetition, second, options.max_cut_ratio
        )
        own = embedder(config.embedder)
        if (note := _unknown_note(own, rows)) is not None:
            notice(note)
        build = partial(SemanticReward, own, clean=config.clean)
        if config.form == "contrastive":
            contrast = Contrast(rows, config.negatives, config.temperature)
            return build(alpha=1.0, form="clip", guards=guards, contrast=contrast)
        if config.form == "euclidean":  # rewards below 0, which a factor would raise
            guards = replace(guards, max_cut_ratio=None)
        return build(alpha=config.alpha, form=config.form, guards=guards)
    if isinstance(config, TokenF1RewardConfig):
        from vigneron.rewards.token_f1 import token_f1_reward

        return token_f1_reward
    if isinstance(config, ProbabilityRewardConfig):
        from vigneron.rewards.probability import ProbabilityReward

        return ProbabilityReward(config.answer_after, config.by, debias=config.debias)
    if isinstance(config, CombinedRewardConfig):
        from vigneron.rewards.combined import CombinedReward

        build_part = partial(
            build_reward, checker=checker, cache=cache, device=device, notice=notice, placement=placement, rows=rows
        )
        parts = [(part.kind, build_part(part)) for part in config.rewards]
        return CombinedReward(parts, config.weights or [1.0] * len(parts), config.combine, hit=config.hit)
    if isinstance(config, EnvironmentRewardConfig):
        from vigneron.rewards.environment import environment_reward

        return environment_reward
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


def _unknown_note(embedder: "CachedEmbedder", rows: Sequence[Row]) -> str | None:
    """About answers that the embedder cannot read."""
    first = (rows[index].get("answer") for index in range(min(NOTED_ROWS, len(rows))))
    answers = [text for answer in first if answer is not None and (text := completion_text(answer)).strip()]
    share = embedder.share_of_unknown(answers)
    if not share:
        return None
    return (
        f"reward.embedder: {share:.0%} of the first {len(answers)} answers contain characters that '{embedder.name}' "
        "does not know and cannot tell apart: choose an embedder for their language"
    )


def reads_rows(config: RewardConfig) -> bool:
    """Whether it compares with answers of other rows."""
    return any(getattr(part, "form", None) == "contrastive" for part in config.parts)


def attach_models(reward: RewardFunction, policy: Policy, reference: Reference | None = None) -> None:
    """Give the rewards that ask the model in training that model, and the reference."""
    for part in (reward, *getattr(reward, "functions", ())):
        if hasattr(part, "attach"):
            part.attach(policy, reference)
