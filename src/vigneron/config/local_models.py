"""Models on this machine that a run uses beside the one it trains, by their config keys."""

from typing import Any

from vigneron.config.environments import GameConfig


def local_judges(reward: Any) -> dict[str, str]:
    """Names of the models of a rubric's local judges."""
    judges = {name: getattr(reward, name, None) for name in ("judge", "held_out_judge")}
    return {f"reward.{name}.model": judge.model for name, judge in judges.items() if judge and judge.kind == "local"}


def local_players(environment: Any) -> dict[str, str]:
    """Names of the models of a game's frozen players."""
    players = environment.players if isinstance(environment, GameConfig) else {}
    return {f"environment.players.{role}.model": one.model for role, one in players.items() if one.kind == "local"}
