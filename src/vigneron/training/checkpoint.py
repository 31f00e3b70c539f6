"""Checkpoints: the whole state of a run, in safetensors and JSON, there or not there.

`checkpoints/step-N/` is a transformers folder, with the rest of the state in `state/`. It is written beside and
renamed; `manifest.json`, with the hash of every file, is written last.
"""

import hashlib
import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vigneron.errors import UserError
from vigneron.files import sha256_of, sync
from vigneron.policy.model import Policy
from vigneron.quiet import quiet_transformers
from vigneron.training.manifest import MANIFEST, damage_explained, manifest_fault


@dataclass(frozen=True)
class State:
    """What a run needs besides its weights. The order of prompts and every draw follow from seed and step."""

    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


def save_checkpoint(folder: Path, policy: Policy, state: State, *, base: dict[str, str], keep_last: int) -> Path:
    target = folder / f"step-{state.step}"
    draft = folder / f".step-{state.step}.draft"
    if target.is_dir():
        return target
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "state").mkdir(parents=True)
    try:
        with quiet_transformers():
            policy.model.save_pretrained(draft, max_shard_size="1TB")
            policy.tokenizer.save_pretrained(draft)
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in state.tensors.items()}
        save_file({**tensors, **_rng_tensors()}, draft / "state" / "tensors.safetensors")
        scalars = {"step": state.step, "base": base, "rng": _rng_scalars(), **state.scalars}
        (draft / "state" / "scalars.json").write_text(json.dumps(scalars), encoding="utf-8")
        _write_manifest(draft)
        draft.rename(target)
        sync(folder)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who was writing
        shutil.rmtree(draft, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot write the checkpoint '{target}': {reason}; the ones before it are whole") from error
    for old in checkpoints(folder)[:-keep_last]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that were finished, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-\d+", p.name) and (p / MANIFEST).is_file()]
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def load_checkpoint(path: Path, policy: Policy, *, base: dict[str, str]) -> State:
    """Put the weights into the policy and return the rest; refuse what is damaged or belongs to another base."""
    check_manifest(path)
    with damage_explained(path):
        scalars = json.loads((path / "state" / "scalars.json").read_text(encoding="utf-8"))
        if scalars.pop("step") != checkpoint_step(path):
            raise UserError(f"the checkpoint '{path}' is damaged: it is of another step than its name says")
        if scalars.pop("base") != base:
            raise UserError(f"'{path}' was trained from other weights than '{base['name']}' now holds: it cannot go on")
        load_weights(path, policy)
        tensors = load_file(path / "state" / "tensors.safetensors")
        _restore_rng(tensors, scalars.pop("rng"))
        return State(checkpoint_step(path), tensors, scalars)


def load_weights(path: Path, policy: Policy) -> None:
    """A checkpoint's weights, or its adapter, into a policy of the same shape."""
    with damage_explained(path):
        if (path / "adapter_model.safetensors").is_file():
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(policy.model, load_file(path / "adapter_model.safetensors"))
            return
        found = policy.model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
        tied = set(getattr(policy.model, "all_tied_weights_keys", None) or ())
        lost = [name for name in found.missing_keys if name not in tied]
        if lost or found.unexpected_keys:
            raise UserError(f"'{path}' does not fit the model: {', '.join([*lost, *found.unexpected_keys][:3])}")


def weights_identity(name: str, policy: Policy) -> dict[str, str]:
    """The base a run starts from: its name, and a hash of its weights."""
    digest = hashlib.sha256()
    for key, tensor in sorted(policy.causal.state_dict().items()):
        if "lora_" not in key:
            digest.update(key.replace(".base_layer", "").encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return {"name": name, "sha256": digest.hexdigest()}


def _write_manifest(draft: Path) -> None:
    files = sorted(p for p in draft.rglob("*") if p.is_file())
    hashes = {str(p.relative_to(draft)): sha256_of(p) for p in files}
    (draft / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    for path in (*files, draft / MANIFEST):
        sync(path)


def check_manifest(path: Path, *, weights_only: bool = False) -> None:
    """Every file is what was written, or those that the weights need."""
    fault = manifest_fault(path, weights_only=weights_only)
    if fault is not None:
        raise UserError(f"the checkpoint '{path}' is damaged: {fault}")


def _rng_tensors() -> dict[str, Tensor]:
    states = {"rng.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng.cuda"] = torch.cuda.get_rng_state()
    return states


def _rng_scalars() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {"python": [version, list(internal), gauss], "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def _restore_rng(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """A user's reward may draw from any of these."""
    torch.set_rng_state(tensors.pop("rng.torch"))
    cuda = tensors.pop("rng.cuda", None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    version, internal, gauss = scalars["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = scalars["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
