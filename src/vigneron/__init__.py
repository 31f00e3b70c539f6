"""Vigneron grows small language models along a stronger guide.

The public API, flat:

    train(recipe, …)      a new run, trained to its end
    resume(folder)        go on with a run
    load_run(folder)      a run's trained child, to evaluate or sample
    load_config(recipe)   a recipe, checked
    Progress              what `train(…, view=function)` tells the function after every step
    UserError             everything a user can mend
    semantic_reward, exact_reward, for_verl     our rewards, for other trainers

Rewards and the tensor maths are in `vigneron.rewards` and `vigneron.core`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vigneron.api import Trained, load_run, resume, train
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
    "resume",
    "semantic_reward",
    "train",
]
__version__ = "0.1.0"

_HOMES = {
    "Config": "vigneron.config",
    "Progress": "vigneron.training.callbacks",
    "Trained": "vigneron.api",
    "UserError": "vigneron.errors",
    "exact_reward": "vigneron.rewards.checkers",
    "for_verl": "vigneron.rewards.interop",
    "semantic_reward": "vigneron.rewards.interop",
    "load_config": "vigneron.recipe",
    "load_run": "vigneron.api",
    "resume": "vigneron.api",
    "train": "vigneron.api",
}


def __getattr__(name: str) -> Any:
    """torch and transformers are imported when something needs them, not before."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vigneron' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
