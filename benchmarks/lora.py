"""LoRA as all contestants have it, and equal adapters on both sides of the parity check."""

from typing import Any
from zlib import crc32

import torch

LORA_ALPHA = 32.0


def same_adapters(model: Any) -> None:
    """Fill each adapter's first matrix from a seed of its name; the second stays 0, so the model is its base.

    The gradient's norm then depends on these draws and on the adapter's scale, which must agree."""
    for name, weight in model.named_parameters():
        if ".lora_A." in name:
            draw = torch.Generator().manual_seed(crc32(name.rpartition("model.layers.")[2].encode()))
            with torch.no_grad():
                weight.copy_(0.02 * torch.randn(weight.shape, generator=draw))
