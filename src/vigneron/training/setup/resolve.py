"""What a config means here: devices, paths, the checkpoints that names stand for."""

from typing import Any

import torch

from vigneron.config import Config, is_api_embedder
from vigneron.errors import UserError
from vigneron.files import user_path
from vigneron.policy.compiling import can_compile
from vigneron.policy.load import resolve_compute_dtype, resolve_device
from vigneron.recipe import recipe_names
from vigneron.run_data.load import Data
from vigneron.run_store.folder import RunFolder, default_runs_folder
from vigneron.sources.client import base_url
from vigneron.training.checkpoint.read import checkpoint_to_look_at, checkpoints

# Compiling takes half a minute: shorter runs are over sooner without.
COMPILE_FROM_STEPS = 200


def resolved(config: Config) -> Config:
    """What `auto` means here, and paths that do not depend on where a command is started."""
    device = resolve_device(config.model.device)
    dtype = "bfloat16" if resolve_compute_dtype(config.model.dtype, device) == torch.bfloat16 else "float32"
    wanted = config.steps >= COMPILE_FROM_STEPS if config.model.compile == "auto" else config.model.compile
    model = {
        "name": newest_weights(config.model.name, "model"),
        "device": str(device),
        "dtype": dtype,
        "compile": wanted and can_compile(device),
    }
    changes: dict[str, Any] = {"model": config.model.model_copy(update=model)}
    if config.reward.kind == "semantic":
        second = config.reward.guards.second_embedder
        guards = config.reward.guards.model_copy(update={"second_embedder": second and absolute(second)})
        reward: dict[str, Any] = {"embedder": absolute(config.reward.embedder), "guards": guards}
        if any(name and is_api_embedder(name) for name in (config.reward.embedder, second)):
            reward["url"] = base_url(config.reward.url, "reward.url")
        changes["reward"] = config.reward.model_copy(update=reward)
    if config.reward.kind == "model" or config.reward.kind == "preference":
        changes["reward"] = config.reward.model_copy(
            update={"model": newest_weights(config.reward.model, "reward.model")}
        )
    if config.reward.kind == "rubric":
        files = {key: getattr(config.reward, key) for key in ("file", "held_out_file")}
        changes["reward"] = config.reward.model_copy(update={k: f and absolute(f) for k, f in files.items()})
    if config.parent is not None:
        parent = (
            {"url": base_url(config.parent.url, "parent.url")}
            if config.parent.kind == "endpoint"
            else {"model": absolute(config.parent.model)}
        )
        changes["parent"] = config.parent.model_copy(update=parent)
    return config.model_copy(update=changes)


def newest_weights(name: str, key: str = "model") -> str:
    """For the folder of a run, its newest checkpoint; else the name of a model, a path made absolute.

    `runs/NAME` is also found where runs are kept, wherever that is.
    """
    path = user_path(name)
    if path.parts[:1] == ("runs",) and not path.exists():
        path = default_runs_folder().joinpath(*path.parts[1:])
        if not path.exists():
            recipe = path.name if path.name in recipe_names() else "RECIPE"
            raise UserError(f"{key}: there is no run '{name}' yet: `vigneron train {recipe} --name {path.name}` first")
    if not (path / "config.yaml").is_file():
        return absolute(name)
    if not checkpoints(RunFolder.open(path).checkpoints):
        raise UserError(f"{key}: the run '{name}' has no checkpoint yet")
    return absolute(str(checkpoint_to_look_at(path)))


def check_held_out(config: Config, data: Data) -> None:
    if config.keep_best is not None and not data.held_out:
        raise UserError(f"keep_best: '{config.keep_best}' needs a held-out part: give data.held_out")


def absolute(name: str) -> str:
    """A path that exists, made absolute; a name of something else as it is."""
    path = user_path(name)
    return str(path.resolve()) if path.exists() else name
