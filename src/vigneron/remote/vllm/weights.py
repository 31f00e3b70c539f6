"""The policy's weights as vLLM loads them: without adapters, in the compute dtype, under a checkpoint's names."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion

from vigneron.errors import UserError, reason
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.rollout.engine.inference_model import adapted_parameter, merged_weight, wrappers_of

MAX_SHARD_SIZE = "5GB"


@torch.no_grad()
def merged_weights(policy: Policy) -> Iterator[tuple[list[str], Tensor]]:
    """Each weight once, with its names in a model without adapters (several for tied weights). Adapters are merged
    one matrix at a time."""
    causal = policy.causal
    wrappers = {
        f"{name}.{adapted_parameter(wrapper)}": wrapper
        for name, module in causal.named_modules()
        if hasattr(module, "get_delta_weight")
        for wrapper in wrappers_of(module)
    }
    adapted = {name.rpartition(".")[0] for name in wrappers}
    tied: dict[Any, list[str]] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in causal.state_dict().items():
        plain = name.replace(".base_layer", "")
        if plain != name and plain.rpartition(".")[0] in adapted and ".lora_" not in name:
            tied[plain], tensors[plain] = [plain], tensor
        elif not any(name.startswith(f"{one}.") for one in adapted):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else name
            tied.setdefault(key, []).append(name)
            tensors.setdefault(tied[key][0], tensor)
    dtype = policy.compute_dtype if policy.compute_dtype == torch.bfloat16 else None
    for names in tied.values():
        first = names[0]
        tensor = (merged_weight(wrappers[first]) if first in wrappers else tensors[first]).detach()
        yield names, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def checkpoint_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """The weights on the policy's device, under the names of a checkpoint, as `load_weights` of a vLLM model takes
    them. Held one at a time, unless the model's class fuses several of a checkpoint's weights into one (MoE)."""
    causal = policy.causal
    weights = ((names[0], tensor) for names, tensor in merged_weights(policy))
    conversions = getattr(causal, "_weight_conversions", None)
    if conversions is None:
        conversions = get_model_conversion_mapping(causal, add_legacy=False)
    if any(isinstance(one, WeightConverter) for one in conversions):
        yield from revert_weight_conversion(causal, dict(weights)).items()
    else:
        for name, tensor in weights:
            yield from revert_weight_conversion(causal, {name: tensor}).items()


def host_weights(policy: Policy) -> dict[str, Tensor]:
    """The weights in host memory. Tied weights stay one tensor."""
    weights: dict[str, Tensor] = {}
    for names, tensor in merged_weights(policy):
        weights |= dict.fromkeys(names, tensor.to("cpu").contiguous())
    return weights


def write_weights(policy: Policy, folder: Path) -> None:
    """Write the folder atomically."""
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with quiet_transformers():
            policy.causal.save_pretrained(draft, state_dict=host_weights(policy), max_shard_size=MAX_SHARD_SIZE)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(f"scale.sampling.weights: cannot write '{folder}': {reason(error)}") from error
