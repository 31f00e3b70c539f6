"""A causal language model as the rest of the code sees it: hidden states, and a head over them.

The trunk and the head are called apart, so that the head runs only where a completion needs it.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vigneron.errors import UserError, first_line
from vigneron.policy.cuda_graphs import GraphedTrunk, Graphs
from vigneron.policy.fused_head import Head, wide_product

PLAIN_ATTENTION = "vigneron_plain"
AttentionInterface.register(PLAIN_ATTENTION, sdpa_attention_forward)


@dataclass
class Policy:
    """A policy with its tokenizer. `eos_ids` all end a completion; `pad_id` fills rows and is never looked at."""

    model: Any  # a transformers model, or peft's wrapper of one
    tokenizer: Any
    eos_ids: frozenset[int]
    pad_id: int
    device: torch.device
    compute_dtype: torch.dtype = torch.float32
    activation_checkpointing: bool = False
    compiled: bool = False
    """Whether layers go through torch.compile, here and in the sampler."""
    graphed: bool = False
    """Whether passes whose shapes repeat are replayed as CUDA graphs."""
    adapter_off: bool = False
    shares_prompts: bool = True
    """Whether completions behind one copy of their prompt are kept apart by a mask; see `can_share_prompts`."""
    sharding: Any = field(default=None, repr=False, compare=False)
    """How ranks share the weights (`scale.sharding`); None: this one has all of them."""
    version: int = 0
    """Of the weights: a run counts the steps that have changed them. Whoever holds a copy compares."""
    sampler: Any = field(default=None, repr=False, compare=False)
    """How completions are sampled; made by `rollout.sample` when it is first needed."""

    @property
    def causal(self) -> Any:
        """The transformers model, inside peft's wrapper if there is one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def hidden_size(self) -> int:
        return int(self.causal.get_output_embeddings().weight.shape[1])

    @property
    def context_length(self) -> int | None:
        return getattr(self.causal.config, "max_position_embeddings", None)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def hidden(
        self,
        ids_RS: Int[Tensor, "R S"],
        positions_RS: Int[Tensor, "R S"],
        allowed_R1SS: Bool[Tensor, "R 1 S S"] | None = None,
    ) -> Float[Tensor, "R S H"]:
        """Last hidden states, after the final norm. Without `allowed`, every token sees all before it in its row."""
        if not self.graphed:
            return self.trunk(ids_RS, positions_RS, allowed_R1SS)
        inputs = [ids_RS, positions_RS] if allowed_R1SS is None else [ids_RS, positions_RS, allowed_R1SS]
        key = (ids_RS.shape, allowed_R1SS is not None, self.adapter_off)
        if not torch.is_grad_enabled():
            return self._still_graphs.replayed(key, self.trunk, inputs)
        return self._moving_graphs(key, inputs)

    @cached_property
    def _still_graphs(self) -> Graphs:
        return Graphs(self.device)

    @cached_property
    def _moving_graphs(self) -> GraphedTrunk:
        named = self.causal.base_model.named_parameters()
        return GraphedTrunk(self.trunk, {name: weight for name, weight in named if weight.requires_grad})

    def trunk(
        self,
        ids_RS: Tensor,
        positions_RS: Tensor,
        allowed_R1SS: Tensor | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """`weights` stand in for the trunk's own, by name."""
        if self.activation_checkpointing:
            # transformers checkpoints in training mode only. There is no dropout to turn on.
            self.model.train(torch.is_grad_enabled())
        with self._precision(), plain_causal(self.causal.config):
            inputs = {"input_ids": ids_RS, "position_ids": positions_RS, "attention_mask": allowed_R1SS}
            out = functional_call(self.causal.base_model, weights or {}, kwargs={**inputs, "use_cache": False})
        return out.last_hidden_state

    def logits(self, hidden_NH: Float[Tensor, "*N H"]) -> Float[Tensor, "*N V"]:
        """Next-token logits in float32 (float64 for a model in float64)."""
        return model_logits(self.causal, hidden_NH, self.compute_dtype)

    def head(self) -> Head | None:
        """The head as one matrix, where it is no more than that."""
        return plain_head(self.causal, self.compute_dtype)

    def frozen_copy(self) -> "Policy":
        model = self._copied().eval().requires_grad_(False)
        return Policy(
            model,
            self.tokenizer,
            self.eos_ids,
            self.pad_id,
            self.device,
            self.compute_dtype,
            graphed=self.graphed,
            sharding=self.sharding,
        )

    def trainable_copy(self) -> "Policy":
        """A network of its own that begins as this one, for a critic.

        Never graphed: it is passed between this one's pass forward and its pass back.
        """
        return Policy(
            self._copied(),
            self.tokenizer,
            self.eos_ids,
            self.pad_id,
            self.device,
            self.compute_dtype,
            self.activation_checkpointing,
            sharding=self.sharding,
        )

    def _copied(self) -> Any:
        return deepcopy(self.model) if self.sharding is None else self.sharding.copied(self)

    def trunk_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What is trained where only hidden states are read."""
        return [(name, p) for name, p in self.causal.base_model.named_parameters() if p.requires_grad]

    def _precision(self) -> AbstractContextManager[Any]:
        return precision(self.device, self.compute_dtype)


@dataclass
class Reference:
    """The policy as it was at the run's start: a frozen copy, or the trained one with its adapter switched off."""

    policy: Policy
    shares_weights: bool

    @classmethod
    def of(cls, policy: Policy) -> "Reference":
        if hasattr(policy.model, "disable_adapter"):
            return cls(policy, shares_weights=True)
        return cls(policy.frozen_copy(), shares_weights=False)

    @torch.no_grad()
    def follow(self, policy: Policy) -> None:
        """Become what a policy of the same shape is now."""
        pairs = zip(self.policy.model.parameters(), policy.model.parameters(), strict=True)
        for mine, theirs in pairs:
            if theirs.requires_grad:
                mine.copy_(theirs)

    @contextmanager
    def active(self) -> Iterator[Policy]:
        with torch.no_grad():
            if self.shares_weights:
                with self.policy.model.disable_adapter():
                    self.policy.adapter_off = True
                    try:
                        yield self.policy
                    finally:
                        self.policy.adapter_off = False
            else:
                yield self.policy


class ValueHead(nn.Module):
    """The critic: a linear head on the policy's hidden states, V = 0 at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_BH: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        return self.linear(hidden_BH.to(self.linear.weight.dtype)).squeeze(-1)


def precision(device: torch.device, compute_dtype: torch.dtype) -> AbstractContextManager[Any]:
    """What matrix products run in; weights, sums and norms are as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if compute_dtype == torch.bfloat16 else nullcontext()


def model_logits(causal: Any, hidden_NH: Float[Tensor, "*N H"], compute_dtype: torch.dtype) -> Float[Tensor, "*N V"]:
    """A model's head, the product in `compute_dtype` and its sums in float32 (float64 for a model in float64)."""
    head = plain_head(causal, compute_dtype)
    if head is not None:
        dtype = compute_dtype if compute_dtype == torch.bfloat16 else head.weight_VH.dtype
        flat_NV = wide_product(hidden_NH.flatten(0, -2).to(dtype), head.weight_VH.to(dtype).t())
        return flat_NV.unflatten(0, hidden_NH.shape[:-1])
    with precision(hidden_NH.device, compute_dtype):
        logits = causal.get_output_embeddings()(hidden_NH)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return apply_logit_shape(logits, causal.config)


def plain_head(causal: Any, compute_dtype: torch.dtype) -> Head | None:
    """The output embeddings as one matrix; None where there is a bias, an adapter, or a shape put on the logits."""
    head = causal.get_output_embeddings()
    shaped = any(getattr(causal.config, name, None) for name in LOGIT_SHAPES)
    if type(head) is not nn.Linear or head.bias is not None or shaped:
        return None
    return Head(head.weight, compute_dtype)


@contextmanager
def plain_causal(config: Any) -> Iterator[None]:
    """Attention by SDPA with the mask that is given, or none at all.

    transformers otherwise looks in the positions for packed rows, and waits for the device to do so.
    """
    before = config._attn_implementation
    if before == "sdpa" and has_full_attention(config):
        config._attn_implementation = PLAIN_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def has_full_attention(config: Any) -> bool:
    """Whether every token sees all before it: no window, no layers of another kind."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


LOGIT_SHAPES = ("logit_scale", "logits_scaling", "final_logit_softcapping")


def apply_logit_shape(logits: Tensor, config: Any) -> Tensor:
    """What some models do to their logits after the head: a scale, a soft cap."""
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Trunk and head called apart must give the model's own logits: refuse a model where they do not."""
    ids = torch.arange(1, 9, device=policy.device)[None] % policy.causal.config.vocab_size
    positions = torch.arange(8, device=policy.device)[None]
    try:
        with policy._precision():
            expected = policy.causal(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
        got = policy.logits(policy.hidden(ids, positions)).float()
    except RuntimeError as error:
        raise UserError(f"model: a test forward pass fails on '{policy.device}': {first_line(error)}") from error
    if not torch.allclose(got, expected, atol=1e-3, rtol=1e-3):
        kind = policy.causal.config.model_type
        raise UserError(f"model: '{kind}' changes its logits after the head in a way Vigneron does not know")
