"""Vigneron: RL post-training of language models, with PGSRM's and GRAPE's rewards.

The public API:

    train(recipe, …)      train a recipe in a new run folder
    resume(folder)        resume a run
    load_run(folder)      a run's trained model, to evaluate or sample from
    load_config(recipe)   a validated recipe
    record_samples(…)     draw and score samples, for methods that train on recorded ones
    Progress              the argument of `train(…, view=function)`'s function after every step
    UserError             errors that the user can fix
    semantic_reward, exact_reward, for_verl     our rewards, for use in other trainers

Rewards and the tensor maths are in `vigneron.rewards` and `vigneron.core`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vigneron.api import Trained, load_run, record_samples, resume, train
    from vigneron.config import Config
    from vigneron.errors import UserError
    from vigneron.recipe import load_config
    from vigneron.rewards.checkers import exact_reward
    from vigneron.rewards.interop import for_verl, semantic_reward
    from vigneron.training.callbacks import Progress

__all__ = [
    "Config",
    "Progress",
    "Trained",
    "UserError",
    "exact_reward",
    "for_verl",
    "load_config",
    "load_run",
    "record_samples",
    "resume",
    "semantic_reward",
    "train",
]
__version__ = "0.2.0"

_MODULES = {
    "Config": "vigneron.config",
    "Progress": "vigneron.training.callbacks",
    "Trained": "vigneron.api",
    "UserError": "vigneron.errors",
    "exact_reward": "vigneron.rewards.checkers",
    "for_verl": "vigneron.rewards.interop",
    "semantic_reward": "vigneron.rewards.interop",
    "load_config": "vigneron.recipe",
    "load_run": "vigneron.api",
    "record_samples": "vigneron.api",
    "resume": "vigneron.api",
    "train": "vigneron.api",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: torch and transformers are slow to import."""
    if name not in _MODULES:
        raise AttributeError(f"module 'vigneron' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)
