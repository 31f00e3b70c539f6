"""The policy's weights as a transformers folder that another engine loads: whole, adapters merged."""

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

SHARD = "5GB"


@torch.no_grad()
def whole_weights(policy: Policy) -> dict[str, Tensor]:
    """By the names of a model without adapters, on the host, in the dtype it computes in.

    Tensors that are one (tied weights) stay one.
    """
    causal = policy.causal
    adapted = {name: module for name, module in causal.named_modules() if hasattr(module, "get_delta_weight")}
    dtype = policy.compute_dtype if policy.compute_dtype == torch.bfloat16 else None
    copies: dict[Any, Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in causal.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        base = owner.removesuffix(".base_layer")
        if owner.endswith(".base_layer") and base in adapted:
            found[f"{base}.{leaf}"] = _on_host(merged_weight(adapted[base]) if leaf == "weight" else tensor, dtype)
        elif not any(name.startswith(f"{one}.") for one in adapted):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if key not in copies or not tensor.numel():
                copies[key] = _on_host(tensor, dtype)
            found[name] = copies[key]
    return found


def _on_host(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()


def write_weights(policy: Policy, folder: Path) -> str:
    """Written beside and renamed. The hash of what the files hold: of equal weights it is the same."""
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with quiet_transformers():
            policy.causal.save_pretrained(draft, state_dict=whole_weights(policy), max_shard_size=SHARD)
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
