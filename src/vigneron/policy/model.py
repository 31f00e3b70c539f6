"""A causal language model split into a trunk (hidden states) and a head (logits).

They are called separately, so that the head runs only at completion positions.
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
from vigneron.policy.cuda_graphs import CudaGraphs, GraphedTrunk
from vigneron.policy.fused_head import Head, matmul_fp32

PLAIN_ATTENTION = "vigneron_plain"
AttentionInterface.register(PLAIN_ATTENTION, sdpa_attention_forward)


@dataclass
class Policy:
    """A policy with its tokenizer. Any of `eos_ids` ends a completion; `pad_id` fills rows and is always masked."""

    model: Any  # a transformers model, or peft's wrapper of one
    tokenizer: Any
    eos_ids: frozenset[int]
    pad_id: int
    device: torch.device
    compute_dtype: torch.dtype = torch.float32
    activation_checkpointing: bool = False
    compiled: bool = False
    """Whether layers use torch.compile, in training and sampling."""
    graphed: bool = False
    """Whether passes with repeated shapes are replayed as CUDA graphs."""
    adapter_off: bool = False
    shares_prompts: bool = True
    """Whether several completions may share one copy of their prompt in a row; see `can_share_prompts`."""
    sharding: Any = field(default=None, repr=False, compare=False)
    """A `policy.sharding.Sharding`; None if this rank has all weights."""
    version: int = 0
    """Version of the weights: the number of steps that have changed them. Holders of a copy compare it."""
    sampler: Any = field(default=None, repr=False, compare=False)
    """The sampler of completions, created on first use by `rollout.engine.sample`."""

    @property
    def causal(self) -> Any:
        """The transformers model, inside peft's wrapper if there is one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def hidden_size(self) -> int:
        return int(self.causal.get_output_embeddings().weight.shape[1])

    @property
    def text_config(self) -> Any:
        """The config of the text model: a composite model has another one for each of its encoders."""
        return self.causal.config.get_text_config()

    @property
    def context_length(self) -> int | None:
        return getattr(self.text_config, "max_position_embeddings", None)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def hidden(
        self,
        ids_RS: Int[Tensor, "R S"],
        positions_RS: Int[Tensor, "R S"],
        allowed_R1SS: Bool[Tensor, "R 1 S S"] | None = None,
    ) -> Float[Tensor, "R S H"]:
        """Last hidden states, after the final norm. `allowed` is the attention mask; without it attention is causal."""
        if not self.graphed:
            return self.trunk(ids_RS, positions_RS, allowed_R1SS)
        inputs = [ids_RS, positions_RS] if allowed_R1SS is None else [ids_RS, positions_RS, allowed_R1SS]
        key = (ids_RS.shape, allowed_R1SS is not None, self.adapter_off)
        if not torch.is_grad_enabled():
            return self._inference_graphs.run(key, self.trunk, inputs)
        return self._training_graphs(key, inputs)

    @cached_property
    def _inference_graphs(self) -> CudaGraphs:
        return CudaGraphs(self.device)

    @cached_property
    def _training_graphs(self) -> GraphedTrunk:
        named = self.causal.base_model.named_parameters()
        return GraphedTrunk(self.trunk, {name: weight for name, weight in named if weight.requires_grad})

    def trunk(
        self,
        ids_RS: Tensor,
        positions_RS: Tensor,
        allowed_R1SS: Tensor | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Last hidden states without CUDA graphs. `weights` replace the trunk's own by name."""
        if self.activation_checkpointing:
            # transformers checkpoints activations only in training mode. All dropout is 0.
            self.model.train(torch.is_grad_enabled())
        with self._precision(), plain_causal(self.causal):
            inputs = {"input_ids": ids_RS, "position_ids": positions_RS, "attention_mask": allowed_R1SS}
            out = functional_call(self.causal.base_model, weights or {}, kwargs={**inputs, "use_cache": False})
        return out.last_hidden_state

    def logits(self, hidden_NH: Float[Tensor, "*N H"]) -> Float[Tensor, "*N V"]:
        """Next-token logits in float32 (float64 for a model in float64)."""
        return model_logits(self.causal, hidden_NH, self.compute_dtype)

    def head(self) -> Head | None:
        """The head as one matrix; None if it is not a plain linear layer."""
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
        """An independent copy, for a critic.

        Never graphed: its passes run between the forward and backward passes of the policy.
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
        return deepcopy(self.model) if self.sharding is None else self.sharding.copy(self)

    def trunk_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The trainable weights without the head."""
        return [(name, p) for name, p in self.causal.base_model.named_parameters() if p.requires_grad]

    def _precision(self) -> AbstractContextManager[Any]:
        return precision(self.device, self.compute_dtype)


@dataclass
class Reference:
    """The policy at the run's start: a frozen copy, or the trained model with its adapter disabled."""

    policy: Policy
    shares_weights: bool

    @classmethod
    def of(cls, policy: Policy) -> "Reference":
        if hasattr(policy.model, "disable_adapter"):
            return cls(policy, shares_weights=True)
        return cls(policy.frozen_copy(), shares_weights=False)

    @torch.no_grad()
    def follow(self, policy: Policy) -> None:
        """Copy the current weights of a policy of the same shape."""
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
    """The critic's linear head on hidden states; V = 0 at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_BH: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        return self.linear(hidden_BH.to(self.linear.weight.dtype)).squeeze(-1)


def precision(device: torch.device, compute_dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast for matrix products; weights, sums and norms keep their dtype."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if compute_dtype == torch.bfloat16 else nullcontext()


def model_logits(causal: Any, hidden_NH: Float[Tensor, "*N H"], compute_dtype: torch.dtype) -> Float[Tensor, "*N V"]:
    """A model's logits, computed in `compute_dtype` and accumulated in float32 (float64 for a model in float64)."""
    head = plain_head(causal, compute_dtype)
    if head is not None:
        dtype = compute_dtype if compute_dtype == torch.bfloat16 else head.weight_VH.dtype
        flat_NV = matmul_fp32(hidden_NH.flatten(0, -2).to(dtype), head.weight_VH.to(dtype).t())
        return flat_NV.unflatten(0, hidden_NH.shape[:-1])
    with precision(hidden_NH.device, compute_dtype):
        logits = causal.get_output_embeddings()(hidden_NH)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return apply_logit_shape(logits, causal.config.get_text_config())


def plain_head(causal: Any, compute_dtype: torch.dtype) -> Head | None:
    """The output embeddings as one matrix; None with a bias, an adapter, or scaled or capped logits."""
    head = causal.get_output_embeddings()
    config = causal.config.get_text_config()
    shaped = any(getattr(config, name, None) for name in LOGIT_SHAPES)
    if type(head) is not nn.Linear or head.bias is not None or shaped:
        return None
    return Head(head.weight, compute_dtype)


@contextmanager
def plain_causal(causal: Any) -> Iterator[None]:
    """Use SDPA with exactly the given mask, if the model's attention can be replaced.

    transformers would otherwise inspect the positions for packed rows, which synchronizes with the device.
    """
    config = causal.config.get_text_config()
    before = config._attn_implementation
    if before == "sdpa" and replaces_attention(causal) and has_full_attention(config):
        config._attn_implementation = PLAIN_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def replaces_attention(causal: Any) -> bool:
    """Whether all layers call the attention function that the config names."""
    return bool(getattr(type(causal), "_supports_attention_backend", False))


def has_full_attention(config: Any) -> bool:
    """Whether all layers have full causal attention: no sliding window, no other layer types."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


LOGIT_SHAPES = ("logit_scale", "logits_scaling", "final_logit_softcapping")


def apply_logit_shape(logits: Tensor, config: Any) -> Tensor:
    """The scale or soft cap that some models apply to their logits."""
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


# Config keys of the number of tokens that a layer attends to, and the number that the test pass gives them.
WINDOWS = ("sliding_window", "attention_chunk_size")
TEST_WINDOW, TEST_TOKENS = 3, 8


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Raise if trunk and head called separately do not give the model's own logits.

    Windows are narrowed for the test, so that a few tokens leave them.
    """
    ids = torch.arange(1, TEST_TOKENS + 1, device=policy.device)[None] % policy.text_config.vocab_size
    positions = torch.arange(TEST_TOKENS, device=policy.device)[None]
    kind = policy.causal.config.model_type
    try:
        with narrow_windows(policy.text_config):
            got = policy.logits(policy.hidden(ids, positions)).float()
            with policy._precision():
                expected = policy.causal(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model is possible
        raise UserError(
            f"model: '{kind}' is not supported: a test forward pass on '{policy.device}' fails: {first_line(error)}"
        ) from error
    if not torch.isfinite(expected).all():
        raise UserError("model: its logits are not finite: the weights contain NaN or infinite numbers")
    if not torch.allclose(got, expected, atol=1e-3, rtol=1e-3):
        raise UserError(
            f"model: '{kind}' is not supported: its log-probs in training would be off by up to "
            f"{float((got.log_softmax(-1) - expected.log_softmax(-1)).abs().max()):.2g} nats"
        )


@contextmanager
def narrow_windows(config: Any) -> Iterator[None]:
    """Give each window of the config `TEST_WINDOW` tokens."""
    before = {name: getattr(config, name) for name in WINDOWS if getattr(config, name, None)}
    try:
        for name in before:
            setattr(config, name, TEST_WINDOW)
        yield
    finally:
        for name, window in before.items():
            setattr(config, name, window)
