"""The activation functions that kernels have."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


def activation_name(function: Any) -> Activation | None:
    """The name of a model's activation function; None if it is another one."""
    x = torch.linspace(-6, 6, 97)
    try:
        y = function(x)
    except Exception:  # any model is possible
        return None
    return next((name for name, known in ACTIVATIONS.items() if torch.allclose(y, known(x), atol=1e-5)), None)
