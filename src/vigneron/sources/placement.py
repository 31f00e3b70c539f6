"""Where the models of a reward run: in this process, unless somebody gives another place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vigneron.config import LocalJudgeConfig
    from vigneron.policy.model import Policy
    from vigneron.policy.reward_model import RewardModelKind
    from vigneron.sources.embedders import Embedder
    from vigneron.sources.judge_questions import Voice


@dataclass(frozen=True)
class Places:
    """What stands in for a local embedder, by its name, for a local judge's voice and for a scorer; None: here."""

    embedder: "Callable[[str], Embedder] | None" = None
    voice: "Callable[[LocalJudgeConfig, str, str], Voice] | None" = None
    """Of the judge's config, what identifies its weights, and the config's key that errors name."""
    scorer: "Callable[[str, RewardModelKind, str], Policy] | None" = None
    """Of a reward or preference model's name, its kind, and a device."""


class _Nobody:
    """Stands where a model would, in a process that never asks it."""

    name = "nobody"
    notice: str | None = None

    def check(self) -> None:
        pass


HERE = Places()
_NOBODY: Any = _Nobody()
NOWHERE = Places(lambda name: _NOBODY, lambda config, source, where: _NOBODY, lambda name, kind, device: _NOBODY)
