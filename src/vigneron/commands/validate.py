"""`vigneron validate`: check a recipe and its data without loading a model."""

from collections.abc import Iterator
from functools import partial

from vigneron.commands.template_text import template_lines
from vigneron.config import Config
from vigneron.errors import visible
from vigneron.policy.load import check_model_name
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.run_data.load import checker_name, load_data
from vigneron.run_data.reference_answers import count_cached
from vigneron.trackers.tracking import check_trackers
from vigneron.training.setup.resolve import newest_weights, resolved


def validation_lines(config: Config, name: str) -> Iterator[str]:
    """The lines to print; the first thing that is wrong is raised as a UserError."""
    check_trackers(config.trackers)
    data = load_data(config)
    config = resolved(config)
    check_model_name(config.model.name)
    build_reward(config.reward, load_checker(checker_name(config)), weights=partial(newest_weights, key="reward.file"))
    for text in data.notices:
        yield f"note: {visible(text)}"
    if config.parent is not None:
        cached, to_ask = count_cached(config, data)
        yield f"parent {config.parent.model}: {cached} answers in the cache, {to_ask} to request"
    shown = [*template_lines(config, data.train)]
    yield f"{name} is valid: {len(data.train)} training rows, {len(data.held_out)} held out"
    yield _size(config)
    yield from map(visible, shown)


def _size(config: Config) -> str:
    if config.method.reads != "prompts":
        rows = {"recorded": "recorded samples"}.get(config.method.reads, config.method.reads)
        return f"{config.steps} steps of {config.prompts_per_step} {rows}"
    samples = config.prompts_per_step * config.group_size
    return (
        f"{config.steps} steps of {samples} samples ({config.prompts_per_step} prompts × {config.group_size}), "
        f"up to {config.max_new_tokens} new tokens each: {config.steps * samples} samples in total"
    )
