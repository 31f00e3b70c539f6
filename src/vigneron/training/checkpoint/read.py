"""Read checkpoints: the complete state of a run, in safetensors and JSON.

`checkpoints/step-N/` is a transformers folder, with the rest of the state in `state/`. It is written under a draft name
and renamed (`write.py`); `manifest.json`, with the hash of every file, is written last.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from vigneron.errors import UserError
from vigneron.files import read_regular
from vigneron.policy.model import Policy
from vigneron.training.checkpoint.hub_names import model_weights
from vigneron.training.checkpoint.manifest import MANIFEST, MEMORY, SCALARS, TENSORS, explain_damage, fault_of
from vigneron.training.checkpoint.shards import read_shards, shard_like
from vigneron.training.checkpoint.snapshot import restore_rng


@dataclass(frozen=True)
class State:
    """The state of a run besides its weights. The order of prompts and all random draws follow from seed and step."""

    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]
    path: Path

    def memory(self) -> Iterator[tuple[str, Any]]:
        with (self.path / MEMORY).open(encoding="utf-8") as file:
            for line in file:
                key, entry = json.loads(line)
                yield key, entry


def step_folders(folder: Path) -> list[Path]:
    """Folders of checkpoints, oldest first, intact or not."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if re.fullmatch(r"step-\d+", p.name)), key=checkpoint_step)


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints (those with a manifest), oldest first."""
    return [path for path in step_folders(folder) if (path / MANIFEST).is_file()]


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read_scalars(path: Path) -> dict[str, Any]:
    scalars: dict[str, Any] = json.loads(read_regular(path / SCALARS))
    return scalars


def load_checkpoint(path: Path, policy: Policy, *, base: dict[str, str], places: Mapping[str, Tensor]) -> State:
    """Load the weights into the policy and return the other state. Raises if damaged, or from another base model.

    `places`: the tensors of the run that the other state is loaded into, by name.
    """
    check_manifest(path)
    with explain_damage(path):
        scalars = read_scalars(path)
        if scalars.pop("step") != checkpoint_step(path):
            raise UserError(f"the checkpoint '{path}' is damaged: its state is of another step")
        if scalars.pop("base") != base:
            raise UserError(
                f"'{path}' was trained from other weights than '{base['name']}' has now: restore the base model"
            )
        load_weights(path, policy)
        tensors = {**load_file(path / TENSORS), **read_shards(path, places)}
        restore_rng(tensors, scalars.pop("rng"))
        return State(checkpoint_step(path), tensors, scalars, path)


def load_weights(path: Path, policy: Policy) -> None:
    """Load a checkpoint's weights, or its adapter, into a policy of the same architecture."""
    with explain_damage(path):
        if (path / "adapter_model.safetensors").is_file():
            _load_adapter(policy, load_file(path / "adapter_model.safetensors"))
            return
        _load_model(path, policy)


def _load_model(path: Path, policy: Policy) -> None:
    """One tensor at a time is read whole: all of them may not fit into memory."""
    places = policy.causal.state_dict()
    unread, unknown = set(places), []
    for name, weight in model_weights(path / "model.safetensors", policy.causal, places):
        if name not in places or places[name].shape != weight.shape:
            unknown.append(name)
            continue
        places[name].copy_(shard_like(weight, places[name]))
        unread.discard(name)
    tied = set(getattr(policy.causal, "all_tied_weights_keys", None) or ())
    if unfit := [*(name for name in places if name in unread - tied), *unknown]:
        raise UserError(f"'{path}' does not fit the model: {', '.join(unfit[:3])}")


def load_critic(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a checkpoint's critic into `weights`, by their names in `Update.weights`."""
    check_manifest(path)
    with explain_damage(path):
        tensors = {**load_file(path / TENSORS), **read_shards(path, weights)}
        if missing := [name for name in weights if name not in tensors]:
            raise UserError(f"'{path}' has no weights of a critic: {', '.join(missing[:3])}")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensors[name])


def _load_adapter(policy: Policy, weights: dict[str, Tensor]) -> None:
    if policy.sharding is None:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(policy.model, weights)
        return
    with torch.no_grad():
        for name, weight in policy.trainable():
            weight.copy_(shard_like(weights[name.replace(".default.", ".")], weight))


def weights_identity(name: str, policy: Policy) -> dict[str, str]:
    """Name and hash of a run's base weights: of their numbers in float32, or of the packed ones of 4-bit layers."""
    digest = hashlib.sha256()
    for key, tensor in sorted(policy.causal.state_dict().items()):
        if "lora_" not in key and ".quant_state." not in key:  # a 4-bit layer's shape and compute dtype
            digest.update(key.replace(".base_layer", "").encode())
            tensor = tensor.detach().cpu()
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return {"name": name, "sha256": digest.hexdigest()}


def check_manifest(path: Path, *, weights_only: bool = False) -> None:
    """Raise if a file, or with `weights_only` a file of the weights, is damaged."""
    fault = fault_of(path, weights_only=weights_only)
    if fault is not None:
        raise UserError(f"the checkpoint '{path}' is damaged: {fault}")


def intact_checkpoints(folder: Path, *, weights_only: bool = False) -> list[Path]:
    return [path for path in step_folders(folder) if fault_of(path, weights_only=weights_only) is None]


def checkpoint_to_resume(run: Path, *, weights_only: bool = False) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, None if there is none yet, and notices about damaged ones that are skipped.

    Raises for one without optimizer state instead of skipping it: the user removed it, and the weights are usable.
    """
    folders = step_folders(run / "checkpoints")
    faults: dict[Path, str] = {}
    for path in reversed(folders):
        fault = fault_of(path, weights_only=weights_only)
        if fault is None:
            return path, [f"the checkpoint {bad.name} is damaged ({why}): skipped" for bad, why in faults.items()]
        if fault == f"{TENSORS} is missing" and fault_of(path, weights_only=True) is None:
            raise UserError(
                f"'{path}' has no optimizer state ({TENSORS}): run `vigneron resume {run} --weights-only` to resume "
                "from its weights with new optimizers, or delete that folder to resume from an earlier checkpoint"
            )
        faults[path] = fault
    if not faults:
        return None, []
    reasons = "; ".join(f"{path.name}: {fault}" for path, fault in faults.items())
    usable = [] if weights_only else intact_checkpoints(run / "checkpoints", weights_only=True)
    hint = (
        f"run `vigneron resume {run} --weights-only` to resume from the weights of {usable[-1].name}" if usable else ""
    )
    raise UserError(f"no checkpoint of '{run}' is intact ({reasons}): {hint or 'train again'}")


def rename_damaged(chosen: Path) -> None:
    """Rename the damaged checkpoints after `chosen` to `damaged-step-N`: their steps are trained again."""
    for path in step_folders(chosen.parent):
        if checkpoint_step(path) > checkpoint_step(chosen):
            damaged = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(damaged, ignore_errors=True)
            path.rename(damaged)


def checkpoint_to_load(run: Path, step: int | None = None) -> Path:
    """The newest checkpoint, or that of `step`. Raises if its weights are damaged, rather than return an older one."""
    saved = checkpoints(run / "checkpoints")
    chosen = [path for path in saved if step is None or checkpoint_step(path) == step]
    if not chosen:
        available = ", ".join(str(checkpoint_step(path)) for path in saved) or "none"
        raise UserError(
            f"'{run}' has no checkpoint{'' if step is None else f' of step {step}'} (available: {available})"
        )
    fault = fault_of(chosen[-1], weights_only=True)
    if fault is not None:
        others = intact_checkpoints(run / "checkpoints", weights_only=True)
        rest = f"intact: {', '.join(path.name for path in others)}" if others else "no other is intact"
        raise UserError(f"the checkpoint '{chosen[-1]}' is damaged: {fault} ({rest})")
    return chosen[-1]
