"""Build a config's rollout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vigneron.batch import Batch
from vigneron.config import Config, GameConfig, SftConfig
from vigneron.data.prompts import Row
from vigneron.policy.model import Policy
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.guided import GuidedSampling
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.rollout.pairs import OrderedPairs, Pairs
from vigneron.rollout.recorded import Recorded
from vigneron.user_code import python_function

GAMES = "vigneron.selfplay.rollout:build"
"""It plugs in as a user's rollout does: its players need what is built on rollouts."""


class Rollout(Protocol):
    """`rollout(rows, step, first)`: a batch of samples for these rows. `first` is the number of the step's rows before
    them: random draws are keyed by a sample's number in the step, so they do not depend on how the step is split."""

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch: ...


@dataclass(frozen=True)
class RolloutParts:
    """The first argument of a custom rollout's `build(parts, options)`. `default` is the method's own rollout."""

    config: Config
    policy: Policy
    default: Rollout
    greedy: bool = False
    """Whether it is for evaluation: one greedy sample per prompt, as `default` then draws it."""


def build_rollout(config: Config, policy: Policy) -> Rollout:
    """The rollout of training steps."""
    return _around(RolloutParts(config, policy, _default_rollout(config, policy)))


def evaluation_rollout(config: Config, policy: Policy) -> Rollout:
    """One greedy sample for each held-out prompt, or greedy game, whatever the method reads."""
    parts = RolloutParts(config, policy, OnPolicy.greedy(config, policy), greedy=True)
    own = config.method.reads == "prompts" or isinstance(config.environment, GameConfig)
    return _around(parts) if own else parts.default


def sampling_rollout(config: Config, policy: Policy, *, group_size: int, seed: int) -> Rollout:
    """`group_size` samples for each prompt at the run's temperature, whatever the method reads."""
    config = config.model_copy(update={"group_size": group_size, "seed": seed})
    parts = RolloutParts(config, policy, OnPolicy.of(config, policy, sampling_of(config)))
    return _around(parts) if config.method.reads == "prompts" else parts.default


def _around(parts: RolloutParts) -> Rollout:
    """The user's own rollout or that of games, built around the default one; or that itself. Methods that do not sample
    play games for evaluation only."""
    if isinstance(parts.config.environment, GameConfig) and isinstance(parts.default, OnPolicy):
        games: Rollout = python_function(GAMES, "environment")(parts, parts.config.environment)
        return games
    if parts.config.rollout is None:
        return parts.default
    build = python_function(parts.config.rollout.name, "rollout.name")
    return build(parts, parts.config.rollout)


def _default_rollout(config: Config, policy: Policy) -> Rollout:
    options = config.method
    if options.reads == "prompts":
        on_policy, template = OnPolicy.of(config, policy, sampling_of(config)), config.sampling.prompt
        return on_policy if template is None else GuidedSampling(on_policy, template)
    if options.reads == "pairs":
        return OrderedPairs(policy) if options.joins_pairs else Pairs(policy)
    if options.reads == "recorded":
        return Recorded(policy)
    if isinstance(options, SftConfig):
        return Demonstrations(policy, options.loss_on, options.packing)
    return Demonstrations(policy)
