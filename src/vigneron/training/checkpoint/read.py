"""Checkpoints: the whole state of a run, in safetensors and JSON, there or not there.

`checkpoints/step-N/` is a transformers folder, with the rest of the state in `state/`. It is written beside and
renamed (`write.py`); `manifest.json`, with the hash of every file, is written last.
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
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.training.checkpoint.manifest import MANIFEST, MEMORY, SCALARS, TENSORS, damage_explained, fault_of
from vigneron.training.checkpoint.shards import placed, read_shards
from vigneron.training.checkpoint.snapshot import restore_rng


@dataclass(frozen=True)
class State:
    """What a run needs besides its weights. The order of prompts and every draw follow from seed and step."""

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
    """Oldest first, whole or not."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if re.fullmatch(r"step-\d+", p.name)), key=checkpoint_step)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that were finished, oldest first."""
    return [path for path in step_folders(folder) if (path / MANIFEST).is_file()]


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read_scalars(path: Path) -> dict[str, Any]:
    scalars: dict[str, Any] = json.loads((path / SCALARS).read_text(encoding="utf-8"))
    return scalars


def load_checkpoint(path: Path, policy: Policy, *, base: dict[str, str], places: Mapping[str, Tensor]) -> State:
    """Put the weights into the policy and return the rest; refuse what is damaged or belongs to another base.

    `places`: what the rest is for, by name.
    """
    check_manifest(path)
    with damage_explained(path):
        scalars = read_scalars(path)
        if scalars.pop("step") != checkpoint_step(path):
            raise UserError(f"the checkpoint '{path}' is damaged: it is of another step than its name says")
        if scalars.pop("base") != base:
            raise UserError(f"'{path}' was trained from other weights than '{base['name']}' now holds: it cannot go on")
        load_weights(path, policy)
        tensors = {**load_file(path / TENSORS), **read_shards(path, places)}
        restore_rng(tensors, scalars.pop("rng"))
        return State(checkpoint_step(path), tensors, scalars, path)


def load_weights(path: Path, policy: Policy) -> None:
    """A checkpoint's weights, or its adapter, into a policy of the same shape."""
    with damage_explained(path):
        if (path / "adapter_model.safetensors").is_file():
            _load_adapter(policy, load_file(path / "adapter_model.safetensors"))
            return
        file = path / "model.safetensors"
        weights = load_file(file) if policy.sharding is None else _parts(file, policy.model.state_dict())
        found = policy.model.load_state_dict(weights, strict=False)
        tied = set(getattr(policy.model, "all_tied_weights_keys", None) or ())
        lost = [name for name in found.missing_keys if name not in tied]
        if lost or found.unexpected_keys:
            raise UserError(f"'{path}' does not fit the model: {', '.join([*lost, *found.unexpected_keys][:3])}")


def _parts(file: Path, places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One tensor at a time is whole: all of them may be more than there is room for."""
    with safe_open(file, framework="pt") as opened:
        names = list(opened.keys())
        return {n: placed(opened.get_tensor(n), places[n]) if n in places else opened.get_tensor(n) for n in names}


def _load_adapter(policy: Policy, weights: dict[str, Tensor]) -> None:
    if policy.sharding is None:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(policy.model, weights)
        return
    with torch.no_grad():
        for name, weight in policy.trainable():
            weight.copy_(placed(weights[name.replace(".default.", ".")], weight))


def weights_identity(name: str, policy: Policy) -> dict[str, str]:
    """The base a run starts from: its name, and a hash of its weights."""
    digest = hashlib.sha256()
    for key, tensor in sorted(policy.causal.state_dict().items()):
        if "lora_" not in key:
            digest.update(key.replace(".base_layer", "").encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return {"name": name, "sha256": digest.hexdigest()}


def check_manifest(path: Path, *, weights_only: bool = False) -> None:
    """Every file is what was written, or those that the weights need."""
    found = fault_of(path, weights_only=weights_only)
    if found is not None:
        raise UserError(f"the checkpoint '{path}' is damaged: {found}")


def which_are_whole(folder: Path, *, weights_only: bool = False) -> list[Path]:
    return [path for path in step_folders(folder) if fault_of(path, weights_only=weights_only) is None]


def checkpoint_to_resume(run: Path, *, weights_only: bool = False) -> tuple[Path | None, list[str]]:
    """The newest whole one, None where there is none yet, and what is to be said of those that are damaged.

    One without its optimizers is refused, not passed over: somebody took them out, and its weights may be wanted.
    """
    found = step_folders(run / "checkpoints")
    faults: dict[Path, str] = {}
    for path in reversed(found):
        fault = fault_of(path, weights_only=weights_only)
        if fault is None:
            return path, [f"the checkpoint {bad.name} is damaged ({why}): passed over" for bad, why in faults.items()]
        if fault == f"{TENSORS} is missing" and fault_of(path, weights_only=True) is None:
            raise UserError(
                f"'{path}' has no optimizer state ({TENSORS}): `vigneron resume {run} --weights-only` goes on from its "
                "weights with new optimizers; without that folder, an earlier checkpoint is taken"
            )
        faults[path] = fault
    if not faults:
        return None, []
    said = "; ".join(f"{path.name}: {fault}" for path, fault in faults.items())
    some = [] if weights_only else which_are_whole(run / "checkpoints", weights_only=True)
    rest = f": `vigneron resume {run} --weights-only` goes on from the weights of {some[-1].name}" if some else ""
    raise UserError(f"no checkpoint of '{run}' is whole ({said}){rest or ': train anew'}")


def set_aside(chosen: Path) -> None:
    """Newer ones than the chosen are damaged: kept under another name, since their steps are made again."""
    for path in step_folders(chosen.parent):
        if checkpoint_step(path) > checkpoint_step(chosen):
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def checkpoint_to_look_at(run: Path, step: int | None = None) -> Path:
    """Of which the weights are read. A damaged one is refused, with the ones that are whole: nobody is shown an older
    child than they think."""
    saved = checkpoints(run / "checkpoints")
    chosen = [path for path in saved if step is None or checkpoint_step(path) == step]
    if not chosen:
        there = ", ".join(str(checkpoint_step(path)) for path in saved) or "none"
        raise UserError(f"'{run}' has no checkpoint{'' if step is None else f' of step {step}'} (available: {there})")
    fault = fault_of(chosen[-1], weights_only=True)
    if fault is not None:
        others = which_are_whole(run / "checkpoints", weights_only=True)
        rest = f"whole: {', '.join(path.name for path in others)}" if others else "no other is whole"
        raise UserError(f"the checkpoint '{chosen[-1]}' is damaged: {fault} ({rest})")
    return chosen[-1]
