"""The reward a config asks for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vigneron.config import (
    ModelRewardConfig,
    PreferenceRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RubricRewardConfig,
    SemanticRewardConfig,
    is_api_embedder,
)
from vigneron.rewards.apply import RewardFunction
from vigneron.rewards.functions import python_function
from vigneron.scale.places import HERE, Places

if TYPE_CHECKING:
    from vigneron.sources.embedding_cache import CachedEmbedder


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
    places: Places = HERE,
) -> RewardFunction:
    """A function of TRL's signature. `cache` is where embeddings are kept, `device` where a reward's model runs,
    `rubric` a run's own copy of the file, `weights` what finds the model that a rubric's item names, `places` where
    embedders and local judges run."""
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
            places=places,
        )
    if isinstance(config, SemanticRewardConfig):
        from vigneron.rewards.guards import Guards
        from vigneron.rewards.semantic import SemanticReward

        options = config.guards
        kept = partial(kept_embedder, url=config.url, cache=cache, device=device, places=places)
        second = None if options.second_embedder is None else kept(options.second_embedder)
        guards = Guards(options.input_weight, options.max_length_ratio, options.max_repetition, second)
        return SemanticReward(
            kept(config.embedder), alpha=config.alpha, form=config.form, clean=config.clean, guards=guards
        )
    if isinstance(config, PythonRewardConfig):
        return python_function(config.function, "reward.function")
    if isinstance(config, ModelRewardConfig | PreferenceRewardConfig):
        from vigneron.rewards.model import ModelReward, PreferenceReward, load_reward_scorer

        load = places.scorer or load_reward_scorer
        if isinstance(config, ModelRewardConfig):
            return ModelReward(load(config.model, "reward", device))
        return PreferenceReward(load(config.model, "first_is_better", device), config.ranking)
    return checker


def kept_embedder(
    name: str, *, url: str | None = None, cache: Path | None, device: str, places: Places = HERE
) -> "CachedEmbedder":
    """An embedder that is ready, and whose vectors are kept."""
    from vigneron.sources.api_embedder import ApiEmbedder
    from vigneron.sources.embedders import SentenceEmbedder, load_embedder
    from vigneron.sources.embedding_cache import CachedEmbedder

    if places.embedder is not None and not is_api_embedder(name):
        return CachedEmbedder(places.embedder(name), cache)
    embedder = load_embedder(name, url)
    if isinstance(embedder, SentenceEmbedder):
        embedder.move(device)
    if isinstance(embedder, ApiEmbedder) and cache is not None:
        embedder.preflight()
    return CachedEmbedder(embedder, cache)
