"""The reward a config asks for."""

from pathlib import Path

from vigneron.config import PythonRewardConfig, RewardConfig, SemanticRewardConfig
from vigneron.rewards.apply import RewardFunction
from vigneron.rewards.checkers import Checker
from vigneron.rewards.functions import python_function


def build_reward(
    config: RewardConfig, checker: Checker, *, cache: Path | None = None, device: str = "cpu"
) -> RewardFunction:
    """A function of TRL's signature. `cache` is where embeddings are kept, `device` where they are computed."""
    if isinstance(config, SemanticRewardConfig):
        from vigneron.rewards.semantic import SemanticReward
        from vigneron.sources.api_embedder import ApiEmbedder
        from vigneron.sources.embedders import SentenceEmbedder, load_embedder
        from vigneron.sources.embedding_cache import CachedEmbedder

        embedder = load_embedder(config.embedder, config.url)
        if isinstance(embedder, SentenceEmbedder):
            embedder.move(device)
        if isinstance(embedder, ApiEmbedder) and cache is not None:
            embedder.preflight()
        kept = CachedEmbedder(embedder, cache)
        return SemanticReward(kept, alpha=config.alpha, form=config.form, clean=config.clean)
    if isinstance(config, PythonRewardConfig):
        return python_function(config.function, "reward.function")
    return checker
