"""Write the policy's weights as a transformers folder for another engine, with adapters merged."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from vigneron.errors import UserError, reason
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.rollout.engine.inference_model import merged_weight

MAX_SHARD_SIZE = "5GB"


@torch.no_grad()
def merged_weights(policy: Policy) -> dict[str, Tensor]:
    """The weights by their names in a model without adapters, in host memory and in the compute dtype.

    Tied weights stay one tensor.
    """
    causal = policy.causal
    adapted = {name: module for name, module in causal.named_modules() if hasattr(module, "get_delta_weight")}
    dtype = policy.compute_dtype if policy.compute_dtype == torch.bfloat16 else None
    copies: dict[Any, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in causal.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        base = owner.removesuffix(".base_layer")
        if owner.endswith(".base_layer") and base in adapted:
            weights[f"{base}.{leaf}"] = _on_host(merged_weight(adapted[base]) if leaf == "weight" else tensor, dtype)
        elif not any(name.startswith(f"{one}.") for one in adapted):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if key not in copies or not tensor.numel():
                copies[key] = _on_host(tensor, dtype)
            weights[name] = copies[key]
    return weights


def _on_host(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()


def write_weights(policy: Policy, folder: Path) -> str:
    """Write the folder atomically and return a hash of the weights."""
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with quiet_transformers():
            policy.causal.save_pretrained(draft, state_dict=merged_weights(policy), max_shard_size=MAX_SHARD_SIZE)
        identity = _hash(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(f"scale.sampling.weights: cannot write '{folder}': {reason(error)}") from error
    return identity


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
