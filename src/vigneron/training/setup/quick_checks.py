"""Checks of a recipe that need neither torch nor transformers: `vigneron validate` answers within a second or two."""

from collections.abc import Iterator

from vigneron.config import Config
from vigneron.environments.build import check_environment
from vigneron.rewards.trial import try_user_functions
from vigneron.run_data.load import Data

# The usual learning rates for all weights; an adapter takes ten times as much.
SCORER_RATES = (1e-6, 1e-4)
PAIR_RATES = (1e-7, 5e-5)
SUPERVISED_RATES = (1e-6, 2e-4)
POLICY_RATES = (1e-7, 1e-4)
CRITIC_RATES = (1e-7, 1e-2)


def quick_checks(config: Config, data: Data) -> list[str]:
    """Raise for a reward or checker of the user's own that fails on the rows, and for an environment that cannot be
    used. Returns notices."""
    check_environment(config.environment)
    notices = try_user_functions(config, data.train, data.held_out)
    return [*notices, *rate_notices(config), *row_notices(config, data)]


def rate_notices(config: Config) -> Iterator[str]:
    """Learning rates that are far from the usual ones."""
    method, optimizer = config.method, config.optimizer
    if method.steps_by_gradient:
        least, most = usual_rates(config)
        weights = "all weights" if config.model.lora is None else "a LoRA adapter"
        yield from _rate("optimizer.actor_lr", optimizer.actor_lr, least, most, f"`method: {method.name}` on {weights}")
    if method.has_critic:
        usual, who = (SCORER_RATES, "a discriminator") if method.trains_its_reward else (CRITIC_RATES, "a critic")
        yield from _rate("optimizer.critic_lr", optimizer.critic_lr, *usual, who)


def usual_rates(config: Config) -> tuple[float, float]:
    """The least and the largest usual learning rate of the trained model."""
    if config.method.trains == "scorer":
        least, most = SCORER_RATES
    else:
        least, most = {"pairs": PAIR_RATES, "demonstrations": SUPERVISED_RATES}.get(config.method.reads, POLICY_RATES)
    factor = 1 if config.model.lora is None else 10
    return least * factor, most * factor


def _rate(key: str, given: float, least: float, most: float, of: str) -> Iterator[str]:
    if not least <= given * 1.001 or not given <= most * 1.001:  # 1e-6 × 10 is not quite 1e-5
        word = "high" if given > most else "low"
        yield f"{key}: {_short(given)} is very {word} for {of}: {_short(least)} to {_short(most)} is usual"


def _short(rate: float) -> str:
    """As people write it: 2e-5, 1e-4, 0.01."""
    mantissa, _, exponent = f"{rate:.2e}".partition("e")
    digits = mantissa.rstrip("0").rstrip(".")
    return f"{digits}e{int(exponent)}" if 0 < rate < 1e-3 else f"{rate:.3g}"


def row_notices(config: Config, data: Data) -> Iterator[str]:
    """A step with more rows than there are."""
    size, rows = config.prompts_per_step, len(data.train)
    if size > rows and config.rollout is None:
        what = {"prompts": "prompts", "pairs": "pairs"}.get(config.method.reads, "rows")
        yield (
            f"prompts_per_step: {size} {what} a step, but the training data has {rows} rows, so a step takes some of "
            f"them more than once: set prompts_per_step={rows} or less"
        )
