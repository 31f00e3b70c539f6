"""Weights that are not trained, in half the memory."""

import sys

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

MATRICES = (nn.Linear, Conv1D)


@torch.no_grad()
def round_matrices(model: nn.Module) -> None:
    """Hold the frozen float32 matrices of linear layers in bfloat16, to which autocast rounds them at every call.

    A head that is tied to an embedding stays: the embedding returns float32.
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, MATRICES):
            for weight in module.parameters(recurse=False):
                if not weight.requires_grad and weight.dtype == torch.float32 and id(weight) not in embedded:
                    weight.data = weight.data.bfloat16()


def is_quantised(module: nn.Module) -> bool:
    """Whether this is a linear layer of bitsandbytes with 4-bit weights. The library is not imported for it."""
    library = sys.modules.get("bitsandbytes")
    return library is not None and isinstance(module, library.nn.Linear4bit)
