"""The model that samples: the policy's own weights where they are frozen or in the compute dtype, and bfloat16 copies
of its other matrices.

Adapters are merged into copies in float32. On a base in bfloat16 or 4 bits they stay beside it, as in training: a
merged weight would be a second one, and round small changes away. The master weights are never changed. `refresh`
updates the copies in place.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vigneron.distributed import ranks
from vigneron.policy.attention import Unsupported, may_have_windows, text_config
from vigneron.policy.fused_modules import can_fuse
from vigneron.policy.held_weights import MATRICES, upcast
from vigneron.policy.logits import model_logits, precision
from vigneron.policy.model import Policy, trunk_of
from vigneron.rollout.engine import cached_attention
from vigneron.rollout.engine.cached_attention import Cache, Layer
from vigneron.rollout.engine.slot_cache import SlotCache

Source = Callable[[], Tensor]


class InferenceModel:
    """A copy of the model's structure with cached attention; see `cached_attention`, and `slot_cache` for models that
    have only their own."""

    def __init__(self, policy: Policy, *, fused: bool = True) -> None:
        self.dtype = policy.compute_dtype
        self.device = policy.device
        self._copies: list[tuple[nn.Parameter, Source]] = []
        causal, self._gathered = _unsharded(policy)
        self._refresh(self._gathered)
        self._policy, self._version = policy, policy.version
        self.model = deepcopy(causal, {id(p): p for p in causal.parameters()}).eval()
        self.own_attention = True
        self._place_adapters(causal)
        if self.dtype == torch.bfloat16:
            self._copy_matrices()
        self.refresh()
        self.fused = fused and can_fuse(self.device, self.dtype)
        if self.fused:
            self._fuse()
        self.attentions: list[Layer] = []
        self.attentions = self._find_attentions()

    def _place_adapters(self, causal: Any) -> None:
        """Replace each adapted layer by a plain one with the weight base + delta, or keep its adapters beside it. Of a
        layer with several adapted parameters, such as experts, peft's wrappers contain each other."""
        merged: tuple[str, ...] = ()
        for name, module in list(causal.named_modules()):
            if not hasattr(module, "get_delta_weight") or name.startswith(merged):
                continue
            if keeps_adapters(module):
                self._keep_adapters(module, self.model.get_submodule(name))
                continue
            merged = (*merged, f"{name}.")
            owner, _, attribute = name.rpartition(".")
            plain = self.model.get_submodule(name).get_base_layer()
            for wrapper in wrappers_of(module):
                parameter = adapted_parameter(wrapper)
                copy = self._copy_of(getattr(plain, parameter), partial(merged_weight, wrapper))
                setattr(plain, parameter, copy)
            setattr(self.model.get_submodule(owner), attribute, plain)

    def _fuse(self) -> None:
        from vigneron.rollout.engine.fused_layers import fuse_layers

        with precision(self.device, self.dtype):
            fuse_layers(self.model)
        self._policy.drop_graphs()  # weights used as they are, frozen or trained in bfloat16, have moved

    def _keep_adapters(self, adapted: Any, kept: Any) -> None:
        """Copy the second matrix of each adapter, which is 0 while adapters are off."""
        kept._disable_adapters = False
        for adapter in adapted.lora_B:
            master = adapted.lora_B[adapter].weight
            kept.lora_B[adapter].weight = self._copy_of(master, partial(_switched, adapted, adapter, master))

    def _copy_matrices(self) -> None:
        """Cast once what autocast would cast at every call; embeddings and norms stay the float32 master weights."""
        merged = {id(copy): (copy, source) for copy, source in self._copies}
        self._copies = []
        for module in self.model.modules():
            if isinstance(module, MATRICES):
                for name, master in list(module.named_parameters(recurse=False)):
                    if master.dtype == self.dtype or not master.is_floating_point():  # used as they are
                        continue
                    _, source = merged.pop(id(master), (master, partial(_itself, master)))
                    setattr(module, name, self._copy_of(master, source))
        self._copies += merged.values()  # adapters on weights that stay in float32, such as embeddings

    def _copy_of(self, master: Tensor, source: Source) -> nn.Parameter:
        dtype = self.dtype if self.dtype == torch.bfloat16 else master.dtype
        copy = nn.Parameter(torch.empty_like(master, dtype=dtype), requires_grad=False)
        self._copies.append((copy, source))
        return copy

    @torch.no_grad()
    def _find_attentions(self) -> list[Layer]:
        """The attention modules in order, with the shapes of their caches: through `cached_attention` where the model
        calls it, else through a `SlotCache`."""
        config = text_config(self.model)
        one = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        most = 0
        before = self.model.config._attn_implementation
        for own in (True, False) if self._policy.own_attention else (False,):
            self.own_attention = own
            if not own and may_have_windows(config):
                raise Unsupported("local attention of its own kind")
            self.model.config._attn_implementation = cached_attention.NAME if own else before
            layers: list[Layer] = []
            with suppress(Exception):  # any model is possible
                self.hidden(one, one, discover=layers)
            if len(layers) == config.num_hidden_layers:
                return layers
            most = max(most, len(layers))
        raise Unsupported("recurrent layers" if most else "recurrent layers, or attention of its own kind")

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current master weights."""
        if self._gathered and self._version != self._policy.version:
            self._refresh(self._gathered)
            self._version = self._policy.version
        self._refresh(self._copies)

    def _refresh(self, copies: list[tuple[nn.Parameter, Source]]) -> None:
        for start in range(0, len(copies), 32):  # in chunks: merged and gathered weights are temporary tensors
            chunk = copies[start : start + 32]
            torch._foreach_copy_([copy for copy, _ in chunk], [source() for _, source in chunk])

    def attach(self, caches: Sequence[Cache]) -> None:
        """Give each layer its keys and values."""
        for layer, cache in zip(self.attentions, caches, strict=True):
            layer.module.vigneron_cache = cache

    def hidden(self, ids_RS: Int[Tensor, "R S"], positions_RS: Int[Tensor, "R S"], **cache: Any) -> Tensor:
        options: dict[str, Any] = {"use_cache": False, "attention_mask": None, **cache}
        if not self.own_attention:
            cache.pop("cache_first", None)  # prompts come whole
            slots = SlotCache([layer.module for layer in self.attentions], **cache)
            options = {"use_cache": True, "attention_mask": slots.mask(), "past_key_values": slots}
        with self._precision():
            out = trunk_of(self.model)(input_ids=ids_RS, position_ids=positions_RS, **options)
        return out.last_hidden_state

    def logits(self, hidden_NH: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        with upcast(self.model) if self._upcasts else nullcontext():
            return model_logits(self.model, hidden_NH, self.dtype)

    def _precision(self) -> AbstractContextManager[Any]:
        return upcast(self.model) if self._upcasts else precision(self.device, self.dtype)

    @property
    def _upcasts(self) -> bool:
        return self._policy.low_precision and self.dtype == torch.float32


def _unsharded(policy: Policy) -> tuple[Any, list[tuple[nn.Parameter, Source]]]:
    """The policy's own model; for a sharded policy, a model whose matrices are gathered copies."""
    if policy.sharding is None:
        return policy.causal, []
    adapted = hasattr(policy.model, "peft_config")  # adapters are merged in the master weights' dtype
    weights: dict[str, nn.Parameter] = {}
    gathered: list[tuple[nn.Parameter, Source]] = []
    for name, master in policy.model.named_parameters():
        weights[name] = master
        if ranks.is_sharded(master):
            dtype = policy.compute_dtype if policy.compute_dtype == torch.bfloat16 and not adapted else master.dtype
            empty = torch.empty(master.shape, dtype=dtype, device=policy.device)
            weights[name] = nn.Parameter(empty, requires_grad=False)
            gathered.append((weights[name], partial(ranks.full_tensor, master)))
    model = policy.sharding.with_weights(weights)
    return (model.get_base_model() if adapted else model), gathered


def _itself(master: Tensor) -> Tensor:
    return master


def _switched(adapted: Any, adapter: str, master: Tensor) -> Tensor:
    on = not adapted.disable_adapters and adapter in adapted.active_adapters
    return master if on else torch.zeros_like(master)


def keeps_adapters(adapted: Any) -> bool:
    """Whether the adapters of a layer stay beside its matrix: one in bfloat16 or 4 bits."""
    base = adapted.get_base_layer()
    return (
        isinstance(base, MATRICES) and adapted.base_layer is base and base.weight.dtype in (torch.bfloat16, torch.uint8)
    )


def wrappers_of(adapted: Any) -> list[Any]:
    """An adapted layer, and the ones inside of it that adapt other parameters of the same layer."""
    wrappers = []
    while hasattr(adapted, "get_delta_weight"):
        wrappers.append(adapted)
        adapted = adapted.base_layer
    return wrappers


def adapted_parameter(adapted: Any) -> str:
    """The name of the parameter that a peft layer adapts."""
    return getattr(adapted, "parameter_name", "weight")


def merged_weight(adapted: Any) -> Tensor:
    """The weight of an adapted layer with its active adapters merged."""
    weight = getattr(adapted.get_base_layer(), adapted_parameter(adapted))
    for adapter in () if adapted.disable_adapters else adapted.active_adapters:
        weight = weight + adapted.get_delta_weight(adapter).to(weight.dtype)
    return weight
