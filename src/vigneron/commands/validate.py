"""`vigneron validate`, after `validate_data`: check a recipe's model and what it makes of the data, without loading
weights, unless the model is to be probed."""

from collections.abc import Iterator
from functools import partial

from vigneron.commands.memory_lines import memory_lines
from vigneron.config import Config, GameConfig, ModelConfig
from vigneron.errors import visible
from vigneron.policy.architecture import (
    NO_ENCODERS,
    check_language_model,
    engine_obstacle,
    language_model_class,
    leaves_out_encoders,
    reward_model_class,
    takes_packed_masks,
)
from vigneron.policy.model_names import local_config
from vigneron.policy.reward_model import check_reward_model
from vigneron.policy.stored import check_shapes
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.run_data.load import Data
from vigneron.run_data.readers import checker_name
from vigneron.run_data.reference_answers import count_cached
from vigneron.trackers.tracking import check_trackers
from vigneron.training.setup.machine_checks import (
    check_compile,
    check_files,
    check_machine,
    check_stored,
    frozen_models,
    machine_notices,
)
from vigneron.training.setup.parent import check_parent
from vigneron.training.setup.preflight import model_checks
from vigneron.training.setup.rendered_rows import shown_rows
from vigneron.training.setup.resolve import check_bfloat16, check_held_out, newest_weights, with_values


def validation_lines(config: Config, data: Data, name: str, probe_samples: int = 0) -> Iterator[str]:
    """The lines to print, after those of `validate_data`; the first thing that is wrong is raised as a UserError.
    `probe_samples`: how many samples to draw from the model, which is then loaded. What this machine lacks comes last:
    the recipe may be another one's."""
    check_trackers(config.trackers)
    given, config = config, with_values(config)
    check_held_out(config, data)
    checks = model_checks(config, data)
    check_parent(config)
    of_reward: list[str] = []
    build_reward(
        config.reward,
        load_checker(checker_name(config)),
        weights=partial(newest_weights, key="reward.file"),
        notice=of_reward.append,
        rows=data.train if config.parent is None else (),
    )
    check_stored(config)
    files = [*check_files(config)]
    models = frozen_models(config) | ({} if config.method.trains == "scorer" else {"model": config.model.name})
    shapes = [note for key, name in models.items() for note in check_shapes(name, key)]
    for text in (*checks.notices, *of_reward, *files, *shapes, *machine_notices(config)):
        yield f"note: {visible(text)}"
    if config.parent is not None:
        cached, to_ask = count_cached(config, data)
        yield f"parent {config.parent.model}: {cached} answers in the cache, {to_ask} to request"
    shown = [*shown_rows(config, data, checks.tokenizer, checks.environments)]
    yield f"{name} is valid: {len(data.train)} training rows, {len(data.held_out)} held out"
    yield _size(config)
    yield from map(visible, shown)
    yield _model_line(config)
    if config.method.parent_model is not None:
        yield f"parent {config.method.parent_model}: frozen, loaded beside the model, once per process"
    paths = {key: getattr(config, key) for key in ("method", "reward", "environment")}
    planned = given.model_copy(update={"model": _with_path(given, config), **paths})
    yield from memory_lines(planned, data, checks.tokenizer, checks.environments)
    check_bfloat16(config)
    check_compile(given)
    check_machine(config)
    if probe_samples:
        yield from _probed(config, data, probe_samples)


def _probed(config: Config, data: Data, samples: int) -> Iterator[str]:
    from vigneron.commands.probe import game_lines, probe_lines
    from vigneron.training.game_probe import probe_game
    from vigneron.training.probe import probe

    notices: list[str] = []
    if isinstance(config.environment, GameConfig):
        lines = game_lines(probe_game(config, data, samples, notices.append), config)
    else:
        lines = probe_lines(probe(config, data, samples, notices.append), config)
    yield from (f"note: {visible(text)}" for text in notices)
    yield from lines


def _with_path(given: Config, config: Config) -> ModelConfig:
    """The model of the recipe, whose device and dtype may be another machine's, with the path of its weights."""
    return given.model.model_copy(update={"name": config.model.name})


def _model_line(config: Config) -> str:
    """What will happen with the recipe's model; docs/reference/models.md lists architectures."""
    model, trains = config.model, config.method.trains
    known = local_config(model.name)
    kind = None
    if known is not None:
        check_language_model(known, f"model: '{model.name}'")
        kind = language_model_class(known)
    if kind is None:
        return f"model {model.name}: not on this machine, or with code of its own; it is inspected when the run starts"
    if trains == "scorer":
        check_reward_model(known, f"model: '{model.name}'", model.trust_remote_code)
    parts = [f"model {model.name} ({known.model_type})"]
    if trains == "policy" and config.method.reads != "pairs":
        sampler = _sampler(config, engine_obstacle(kind, known))
        parts.append(sampler if config.method.reads == "prompts" else f"in evaluation and chat {sampler}")
    packed = takes_packed_masks(kind, known)
    parts.append(f"prompts are {'' if packed else 'not '}shared between completions in training")
    if getattr(config.method, "packing", False):
        parts.append("rows are packed" if packed else "`packing` has no effect: it cannot keep samples apart in a row")
    if leaves_out_encoders(reward_model_class(known) if trains == "scorer" else kind, known):
        parts.append(NO_ENCODERS)
    return f"{parts[0]}: {'; '.join(parts[1:])}"


def _sampler(config: Config, obstacle: str | None) -> str:
    if config.scale.sampling.kind == "vllm":
        return "vLLM samples"
    if obstacle is None:
        return "the engine samples"
    return f"transformers' generate samples, which is slower than the engine: it has {obstacle}"


def _size(config: Config) -> str:
    if config.method.reads != "prompts":
        rows = {"recorded": "recorded samples"}.get(config.method.reads, config.method.reads)
        return f"{config.steps} steps of {config.prompts_per_step} {rows}"
    samples, each = config.prompts_per_step * config.group_size, f"up to {config.max_new_tokens} new tokens each"
    what, talk = "samples", "conversations of"
    if isinstance(config.environment, GameConfig):
        what, talk = "games", "for each role"
    if config.environment is not None:
        each = f"{talk} up to {config.environment.max_turns} turns of {config.max_new_tokens} new tokens"
    return (
        f"{config.steps} steps of {samples} {what} ({config.prompts_per_step} prompts × {config.group_size}), "
        f"{each}: {config.steps * samples} {what} in total"
    )
