"""Resolve a config on this machine: `auto` values, devices, paths, and runs to their checkpoints."""

from typing import Any

import torch

from vigneron.config import (
    Config,
    GameConfig,
    GrapeConfig,
    LocalJudgeConfig,
    LocalPlayerConfig,
    RewardConfig,
    is_api_embedder,
)
from vigneron.errors import UserError, nearest
from vigneron.files import parse_json, read_regular, user_path
from vigneron.policy.bundled import BUNDLED_MODELS
from vigneron.policy.compiling import can_compile
from vigneron.policy.device import resolve_compute_dtype, resolve_device
from vigneron.policy.model_names import is_cached
from vigneron.recipe import recipe_names
from vigneron.run_data.load import Data
from vigneron.run_store.folder import RunFolder, run_names, run_path
from vigneron.sources.client import base_url
from vigneron.training.checkpoint.read import checkpoint_to_load, checkpoints

# Compiling takes half a minute: shorter runs are faster without it.
COMPILE_FROM_STEPS = 200


def resolved(config: Config) -> Config:
    """The config with `auto` replaced by values for this machine, and with absolute paths. Raises if the machine cannot
    hold its weights as it says."""
    here = with_values(config)
    check_bfloat16(here)
    return here


def check_bfloat16(config: Config) -> None:
    """The config has its values."""
    model = config.model
    if model.weights == "bfloat16" and model.dtype == "float32":
        raise UserError(
            f"model.weights: bfloat16 needs products in bfloat16, which '{model.device}' does not support: leave it "
            "out on this machine (`model.dtype=bfloat16` emulates them, slowly)"
        )


def with_values(config: Config) -> Config:
    """`resolved` without a check: for plans of another machine."""
    device = resolve_device(config.model.device)
    dtype = "bfloat16" if resolve_compute_dtype(config.model.dtype, device) == torch.bfloat16 else "float32"
    wanted = config.steps >= COMPILE_FROM_STEPS if config.model.compile == "auto" else config.model.compile
    model = {
        "name": newest_weights(config.model.name, "model"),
        "device": str(device),
        "dtype": dtype,
        "compile": wanted and can_compile(device),
    }
    changes: dict[str, Any] = {
        "model": config.model.model_copy(update=model),
        "reward": _reward(config.reward, "reward"),
    }
    if config.method.parent_model is not None:
        weights = newest_weights(config.method.parent_model, "method.parent")
        changes["method"] = config.method.model_copy(update={"parent": weights})
    if isinstance(method := config.method, GrapeConfig) and "baseline" not in method.model_fields_set:
        alone = config.group_size < method.smallest_group_by_origin
        changes["method"] = method.model_copy(update={"baseline": "group" if alone else method.baseline})
    if config.parent is not None:
        parent = (
            {"url": base_url(config.parent.url, "parent.url")}
            if config.parent.kind == "endpoint"
            else {"model": newest_weights(config.parent.model, "parent.model")}
        )
        changes["parent"] = config.parent.model_copy(update=parent)
    if isinstance(config.environment, GameConfig):
        changes["environment"] = _game(config.environment, str(model["name"]))
    return config.model_copy(update=changes)


def _game(game: GameConfig, reference: str) -> GameConfig:
    """With absolute paths, the newest weights of its players, and their URLs. `reference` is the model at the start."""
    players: dict[str, Any] = {}
    for role, player in game.players.items():
        key = f"environment.players.{role}"
        if player.kind == "endpoint":
            players[role] = player.model_copy(update={"url": base_url(player.url, f"{key}.url")})
        elif player.kind == "reference":
            players[role] = LocalPlayerConfig(kind="local", model=reference)
        else:
            players[role] = player.model_copy(update=_model_and_adapter(player, f"{key}.model"))
    return game.model_copy(update={"players": players})


def _model_and_adapter(player: LocalPlayerConfig, key: str) -> dict[str, str | None]:
    """The weights of a frozen player; of an adapter alone, its base model with it."""
    weights = newest_weights(player.model, key)
    settings = user_path(weights) / "adapter_config.json"
    if not settings.is_file():
        return {"model": weights, "adapter": player.adapter and absolute(player.adapter)}
    base = parse_json(read_regular(settings)).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{key}: '{weights}' is an adapter that names no base model: give that, and it as `adapter`")
    return {"model": absolute(str(base)), "adapter": weights}


def _reward(reward: RewardConfig, key: str) -> RewardConfig:
    """With absolute paths, the newest weights of its models, and the URL of an API. Errors name `key`."""
    changes: dict[str, Any] = {}
    if reward.kind == "semantic":
        second = reward.guards.second_embedder
        guards = reward.guards.model_copy(update={"second_embedder": second and absolute(second)})
        changes = {"embedder": absolute(reward.embedder), "guards": guards}
        if any(name and is_api_embedder(name) for name in (reward.embedder, second)):
            changes["url"] = base_url(reward.url, f"{key}.url")
    if reward.kind in ("model", "preference", "process"):
        changes = {"model": newest_weights(reward.model, f"{key}.model")}
    if reward.kind == "rubric":
        files = {name: getattr(reward, name) for name in ("file", "held_out_file")}
        changes = {name: file and absolute(file) for name, file in files.items()}
        if isinstance(reward.judge, LocalJudgeConfig):
            weights = newest_weights(reward.judge.model, f"{key}.judge.model")
            changes["judge"] = reward.judge.model_copy(update={"model": weights})
    if reward.kind == "combined":
        changes = {"rewards": [_reward(part, f"{key}.rewards[{n}]") for n, part in enumerate(reward.rewards)]}
    return reward.model_copy(update=changes) if changes else reward


def newest_weights(name: str, key: str = "model") -> str:
    """The newest checkpoint if `name` is a run, by its folder or its name; otherwise the model's name, or its absolute
    path. A model of the hub that is on this machine comes before a run of its name: `gpt2` stays the model."""
    path = user_path(name) if name in BUNDLED_MODELS or is_cached(name) else run_path(name)
    if path.parts[:1] == ("runs",) and not path.exists():
        near = nearest(path.name, run_names())
        recipe = path.name if path.name in recipe_names() else "RECIPE"
        way = f"did you mean '{near}'?" if near else f"run `vigneron train {recipe} --name {path.name}` first"
        raise UserError(f"{key}: there is no run '{name}': {way}")
    if not (path / "config.yaml").is_file():
        return absolute(name)
    if not checkpoints(RunFolder.open(path).checkpoints):
        raise UserError(f"{key}: the run '{name}' has no checkpoint yet: train it first")
    return absolute(str(checkpoint_to_load(path)))


def check_held_out(config: Config, data: Data) -> None:
    if config.keep_best is not None and not data.held_out:
        raise UserError(f"keep_best: '{config.keep_best}' needs held-out data: set data.held_out")


def absolute(name: str) -> str:
    """The absolute path if it exists; otherwise the name unchanged."""
    path = user_path(name)
    return str(path.resolve()) if path.exists() else name
