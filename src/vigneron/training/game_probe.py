"""A probe of a game before training: episodes that the untrained model plays, and what each role earns in them."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from vigneron.batch import Batch
from vigneron.config import Config, GameConfig
from vigneron.core.advantages import share_without_variance
from vigneron.environments.game import game_class
from vigneron.policy.device import resolve_device, use_device
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import attach_models
from vigneron.rollout.build import build_rollout
from vigneron.run_data.load import Data
from vigneron.selfplay.rollout import ROLE
from vigneron.timing import phase
from vigneron.training.conversation_alerts import conversation_warnings
from vigneron.training.probe import GROUP, check_samples, reward_of, spread_rows


@dataclass(frozen=True, kw_only=True)
class RoleProbe:
    """Of a role that the policy plays. NaN where no sample has a reward."""

    samples: int
    reward: float
    spread: float
    """The mean over groups of the standard deviation of a group's rewards."""
    flat: float
    """Share of groups whose rewards are all equal."""
    cut: float
    """Share with a turn cut by `max_new_tokens`, or with more to read than fits."""


@dataclass(frozen=True, kw_only=True)
class GameProbe:
    rows: int
    episodes: int
    failed: float
    """Share of episodes."""
    endless: float
    """Share of samples whose episode `environment.max_turns` ended."""
    roles: dict[str, RoleProbe | None]
    """Those that the policy plays; None without a turn."""


def probe_game(
    config: Config, data: Data, episodes: int, notice: Callable[[str], None] = lambda text: None
) -> GameProbe:
    """Play episodes of a resolved recipe's game on training rows that are spread evenly over the data."""
    check_samples(config)
    game = config.environment
    assert isinstance(game, GameConfig)
    group_size = config.group_size if config.group_size > 1 else GROUP
    groups = max(1, episodes // group_size)
    rows = spread_rows(data.train, groups)
    use_device(resolve_device(config.model.device))
    function = reward_of(config, data.train, notice)
    with closing(ApplyReward.of(config, function)) as reward:
        seed_everything(config.seed)
        with phase("load the model"):
            policy = policy_from_config(config)
        attach_models(function, policy)
        rollout = build_rollout(config.model_copy(update={"group_size": group_size}), policy)
        with phase("sample"):
            batch = rollout(rows)
        batch = reward(batch, whole_step=False)
    for text in conversation_warnings(batch, config).values():
        notice(text)
    own = [role for role in game_class(game).roles if role not in game.players]
    of_roles = {role: [i for i, of in enumerate(batch.samples.columns[ROLE]) if of == role] for role in own}
    return GameProbe(
        rows=min(len(data.train), groups),
        episodes=groups * group_size,
        failed=batch.signals.metrics["turns/failed"],
        endless=batch.signals.metrics["turns/cut"],
        roles={role: _of_role(batch.rows(places)) if places else None for role, places in of_roles.items()},
    )


def _of_role(batch: Batch) -> RoleProbe:
    rewards_B, group_B = batch.signals.rewards_B.cpu().double(), batch.samples.group_B.cpu()
    groups = [rewards_B[(group_B == group) & ~rewards_B.isnan()] for group in group_B.unique()]
    spreads = [float(rewards.std(correction=0)) for rewards in groups if len(rewards) > 1]
    return RoleProbe(
        samples=len(batch),
        reward=float(rewards_B.nanmean()),
        spread=sum(spreads) / len(spreads) if spreads else float("nan"),
        flat=float(share_without_variance(rewards_B, group_B)),
        cut=float(batch.samples.truncated_B.double().mean()),
    )
