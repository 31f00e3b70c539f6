"""Models of fake tensors, which have shapes and no values, held and computed as in training."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from vigneron.policy.architecture import auto_class, replaces_attention
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.fused_modules import fuse_modules
from vigneron.policy.held_weights import castable
from vigneron.policy.load import _freeze_encoders, checkpoint_activations
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy


@dataclass(frozen=True)
class Holding:
    """How a policy's weights are held, and passes computed."""

    compute: torch.dtype = torch.bfloat16
    bfloat16_weights: bool = False
    """Whether matrices and embeddings (of a base, under an adapter) are in bfloat16, as `castable`."""
    lora: Lora | None = None
    checkpointing: bool = False
    compiled: bool = False
    """Of models whose layers are not fused."""
    fused: bool = False
    """Whether modules are fused where they can be, as on a CUDA device in bfloat16, and attention is a flash kernel."""


def fake_policy(config: Any, holding: Holding, layers: int, *, scorer: bool = False) -> Policy:
    """A policy of so many layers, of fake tensors: called within a `FakeTensorMode`."""
    with unset_fake_temporarily():
        model = meta_model(with_layers(config, layers), holding.lora, scorer=scorer)
    policy = Policy(model, None, frozenset(), 0, torch.device("cpu"), holding.compute)
    causal = policy.causal
    policy.own_attention = replaces_attention(type(causal))
    if getattr(causal.config.get_text_config(), "attn_logit_softcapping", None):
        causal.config._attn_implementation = "eager"
    if holding.checkpointing:
        checkpoint_activations(policy)
    _make_fake(model, {id(weight) for weight in castable(causal)} if holding.bfloat16_weights else set())
    complete = holding.fused and fuse_modules(causal)
    policy.compiled = holding.compiled and not complete
    return policy


def meta_model(config: Any, lora: Lora | None = None, *, scorer: bool = False) -> Any:
    """A model of a config, in float32, without values."""
    from transformers import AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if scorer else auto_class(config)
    config = deepcopy(config)
    if scorer:
        config.num_labels = 1
    with torch.device("meta"), quiet_transformers():
        model = kind.from_config(config, dtype=torch.float32).eval()
        _freeze_encoders(model)
        return model if lora is None else add_lora(model, lora)


def _make_fake(model: nn.Module, in_bfloat16: set[int]) -> None:
    """Replace weights and buffers on the meta device by fake ones on the CPU, whose autocast then works."""
    fakes: dict[int, Tensor] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                dtype = torch.bfloat16 if id(weight) in in_bfloat16 else weight.dtype
                fake = nn.Parameter(torch.empty(weight.shape, dtype=dtype), weight.requires_grad)
                module._parameters[name] = fakes.setdefault(id(weight), fake)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        if isinstance(module, nn.Embedding) and module.weight.dtype == torch.bfloat16:
            module.register_forward_hook(lambda module, given, out: out.float())


def with_layers(config: Any, count: int) -> Any:
    """The config with fewer layers; its lists of one entry for each layer are cut too."""
    config = deepcopy(config)
    text = config.get_text_config()
    before = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == before:
            setattr(text, name, value[:count])
    text.num_hidden_layers = count
    if getattr(text, "num_kv_shared_layers", None):  # Gemma 3n: layers that use the keys of earlier ones
        text.num_kv_shared_layers = 0
    return config
