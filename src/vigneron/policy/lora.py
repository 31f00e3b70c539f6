"""LoRA adapters by peft."""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.errors import UserError, first_line
from vigneron.policy.held_weights import float32_stand_ins

FUSED_OUTPUT = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Model types whose output projections peft refuses to adapt."""


@dataclass(frozen=True)
class Lora:
    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"


def add_lora(model: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    options: dict[str, Any] = {"lora_alpha": lora.alpha}  # annotated as int in peft, but any number works
    excluded = encoder_names(model)
    if lora.targets == "all-linear":  # of targets that were named, peft explains what is wrong with them
        excluded += not_adaptable(model)
    if excluded:
        options["exclude_modules"] = rf"({'|'.join(map(re.escape, excluded))})(\..*)?"
    config = LoraConfig(
        r=lora.rank,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        **options,
    )
    try:
        with (
            warnings.catch_warnings(),
            float32_stand_ins(model),
        ):  # about patterns for experts that peft adds to the config itself
            warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match")
            return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"model.lora: {first_line(error)}") from error


def encoder_names(model: Any) -> list[str]:
    """Of a composite model: the modules that belong to images and sounds, which texts do not train."""
    if model.config.get_text_config() is model.config:
        return []
    text = {id(module) for module in model.get_decoder().modules()} | {id(model.get_output_embeddings())}
    holds_text = {name for name, module in model.named_modules() if any(id(m) in text for m in module.modules())}
    outside = [name for name, module in model.named_modules() if name not in holds_text]
    return [name for name in outside if name.rpartition(".")[0] in holds_text]


def not_adaptable(model: Any) -> list[str]:
    """Linear layers that adapters cannot be added to: routers of experts, which return more than a product, and what
    the kernels of Mamba read directly."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    fused = model.config.model_type in FUSED_OUTPUT
    return [name for name, module in linear if (fused and name.endswith(".out_proj")) or not _is_product(module)]


@torch.no_grad()
def _is_product(linear: torch.nn.Linear) -> bool:
    if type(linear).forward is torch.nn.Linear.forward:
        return True
    row = torch.zeros(1, linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)
    try:
        return isinstance(linear(row), torch.Tensor)
    except Exception:  # any model is possible
        return False
