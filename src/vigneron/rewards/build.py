"""The reward a config asks for."""

import importlib
import os
import sys
from pathlib import Path

from vigneron.config import PythonRewardConfig, RewardConfig, SemanticRewardConfig
from vigneron.errors import UserError
from vigneron.rewards.apply import RewardFunction
from vigneron.rewards.exact import exact_reward


def build_reward(config: RewardConfig, *, cache: Path | None = None, device: str = "cpu") -> RewardFunction:
    """A function of TRL's signature. `cache` is where embeddings are kept, `device` where they are computed."""
    if isinstance(config, SemanticRewardConfig):
        from vigneron.rewards.semantic import SemanticReward
        from vigneron.sources.embedders import SentenceEmbedder, load_embedder
        from vigneron.sources.embedding_cache import CachedEmbedder

        embedder = load_embedder(config.embedder)
        if isinstance(embedder, SentenceEmbedder):
            embedder.move(device)
        kept = CachedEmbedder(embedder, cache)
        return SemanticReward(kept, alpha=config.alpha, form=config.form, clean=config.clean)
    if isinstance(config, PythonRewardConfig):
        return _python_function(config.function)
    return exact_reward


def _python_function(path: str) -> RewardFunction:
    module_name, name = path.split(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a user's module beside the recipe
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"reward.function: cannot import '{module_name}': {error}") from error
    except Exception as error:  # the edge to the user's own code: name it, keep the cause for --debug
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"reward.function: importing '{module_name}' raised {what}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"reward.function: '{module_name}' has no function '{name}'")
    return function
