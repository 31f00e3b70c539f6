"""Where the models of a reward run: in this process by default, or on Ray actors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vigneron.config import LocalJudgeConfig
    from vigneron.policy.model import Policy
    from vigneron.policy.reward_model import RewardModelKind
    from vigneron.sources.embedders import Embedder
    from vigneron.sources.judge_client import JudgeBackend


@dataclass(frozen=True)
class ModelPlacement:
    """Factories for models that run elsewhere. None: the model is loaded in this process."""

    embedder: "Callable[[str], Embedder] | None" = None
    """From the embedder's name."""
    judge_backend: "Callable[[LocalJudgeConfig, str, str], JudgeBackend] | None" = None
    """From the judge's config, the identity of its weights, and the config key that errors name."""
    scorer: "Callable[[str, RewardModelKind, str], Policy] | None" = None
    """From the name of a reward or preference model, its kind, and a device."""


class _Placeholder:
    """In place of a model, in a process that never calls it."""

    name = "not loaded"
    notice: str | None = None

    def check(self) -> None:
        pass


_PLACEHOLDER: Any = _Placeholder()
IN_PROCESS = ModelPlacement()
NOT_LOADED = ModelPlacement(
    lambda name: _PLACEHOLDER, lambda config, source, where: _PLACEHOLDER, lambda name, kind, device: _PLACEHOLDER
)
"""For ranks other than the first, which receive rewards from it."""
