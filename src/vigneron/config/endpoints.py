"""Which models behind an API a recipe asks: requests may cost money."""

from collections.abc import Iterator

from vigneron.config.environments import GameConfig
from vigneron.config.rewards import RubricRewardConfig, SemanticRewardConfig, is_api_embedder
from vigneron.config.top_level import TopLevel


def endpoints_of_samples(config: TopLevel) -> Iterator[str]:
    """Those that are asked to answer training prompts, or to score samples of them."""
    if config.parent is not None and config.parent.kind == "endpoint":
        yield f"the parent '{config.parent.model}'"
    if isinstance(config.environment, GameConfig):
        players = config.environment.players.values()
        yield from (f"the player '{player.model}'" for player in players if player.kind == "endpoint")
    for part in config.reward.parts:
        if isinstance(part, SemanticRewardConfig):
            names = (part.embedder, part.guards.second_embedder)
            yield from (f"the embedder '{name}'" for name in names if name is not None and is_api_embedder(name))
        if isinstance(part, RubricRewardConfig) and part.judge is not None and part.judge.kind == "endpoint":
            yield f"the judge '{part.judge.model}'"
