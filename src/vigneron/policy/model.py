"""A causal language model split into a trunk (hidden states) and a head (logits).

They are called separately, so that the head runs only at completion positions.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from vigneron.batch import Packing
from vigneron.policy import attention
from vigneron.policy.attention import Unpacked, local_attention, local_mask, recorded_callers, shrunken_windows
from vigneron.policy.cuda_graphs import CudaGraphs, GraphedTrunk
from vigneron.policy.fused_head import Head
from vigneron.policy.held_weights import has_low_precision, round_matrices, upcast
from vigneron.policy.logits import model_logits, plain_head, precision
from vigneron.policy.longrope import LongRope

MOST_GRAPHED = 1e13
"""Tokens times weights of the largest pass that is a CUDA graph: some 50 ms on a large GPU, less than the launches of
its kernels take."""


@dataclass
class Policy:
    """A policy with its tokenizer. Any of `eos_ids` ends a completion; `pad_id` fills what is masked."""

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
    own_attention: bool | None = None
    """Whether passes use `policy.attention`, which knows the model's windows, instead of transformers' attention. Found
    at the first pass: not for models with a kind of attention that it does not reproduce."""
    long_rope: LongRope | None = None
    """How a sequence's length chooses its rotary frequencies; None for models with one set of them."""
    shares_prompts: bool = True
    """Whether several completions may share one copy of their prompt in a row; see `can_share_prompts`."""
    low_precision: bool = False
    """Whether some weights are held in bfloat16 or 4 bits: float32 passes upcast them, one layer at a time."""
    offloaded: bool = False
    """Whether the weights are in host memory between passes (`policy.reference`): no pass is captured as a CUDA graph,
    which would contain their addresses."""
    sharding: Any = field(default=None, repr=False, compare=False)
    """A `policy.sharding.Sharding`; None if this rank has all weights."""
    version: int = 0
    """Version of the weights: the number of steps that have changed them. Holders of a copy compare it."""
    cache_bytes: int | None = None
    """Bytes of memory for the keys and values of sampling. None: the engine's default."""
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

    def position_offset(self, prompt: int, completion: int) -> int:
        """What is added to the positions of a sequence with a prompt and a completion of so many tokens."""
        return 0 if self.long_rope is None else self.long_rope.offset(prompt, completion)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def hidden(
        self,
        ids_RS: Int[Tensor, "R S"],
        positions_RS: Int[Tensor, "R S"],
        apart: Bool[Tensor, "R 1 S S"] | Unpacked | None = None,
    ) -> Float[Tensor, "R S H"]:
        """Last hidden states, after the final norm. `apart` keeps packed samples apart: an attention mask, or their
        places in rows of their own. Without it attention is causal."""
        if not self.uses_graphs(ids_RS.numel()):
            return self.trunk(ids_RS, positions_RS, apart)
        more = [] if apart is None else [apart] if isinstance(apart, Tensor) else list(apart)
        inputs = [ids_RS, positions_RS, *more]
        key = (*(tensor.shape for tensor in inputs), self.adapter_off)

        def trunk(ids_RS: Tensor, positions_RS: Tensor, *more: Tensor, weights: Any = None) -> Tensor:
            apart = None if not more else more[0] if len(more) == 1 else Unpacked(*more)
            return self.trunk(ids_RS, positions_RS, apart, weights)

        if not torch.is_grad_enabled():
            return self._inference_graphs.run(key, trunk, inputs)
        return self._training_graphs(key, inputs, trunk)

    def uses_graphs(self, tokens: int) -> bool:
        """Whether a pass over so many tokens is replayed as a CUDA graph: not if its kernels take longer than their
        launches, since a graph keeps the memory of its pass."""
        return self.graphed and tokens * self.size <= MOST_GRAPHED

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        return sum(weight.numel() for weight in self.causal.parameters())

    def packing(self) -> Packing:
        """How samples are packed for this model."""
        return Packing(share_prompts=self.shares_prompts, masked=not self.unpacks())

    def unpacks(self) -> bool:
        """Whether packed samples are kept apart by unpacking them for attention; recurrent layers mix them all the
        same."""
        return self.shares_prompts and self.uses_own_attention()

    def uses_own_attention(self) -> bool:
        if self.own_attention is None:
            self.own_attention = attention_fits(self)
        return self.own_attention

    def drop_graphs(self) -> None:
        """Forget all CUDA graphs: weights have moved."""
        for name in ("_inference_graphs", "_training_graphs"):
            self.__dict__.pop(name, None)

    @cached_property
    def _inference_graphs(self) -> CudaGraphs:
        return CudaGraphs(self.device, available=not self.offloaded)

    @cached_property
    def _training_graphs(self) -> GraphedTrunk:
        named = trunk_of(self.causal).named_parameters()
        return GraphedTrunk({name: weight for name, weight in named if weight.requires_grad})

    def trunk(
        self,
        ids_RS: Tensor,
        positions_RS: Tensor,
        apart: Tensor | Unpacked | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Last hidden states without CUDA graphs. `weights` replace the trunk's own by name."""
        inputs: dict[str, Any] = {"input_ids": ids_RS, "position_ids": positions_RS, "attention_mask": None}
        if isinstance(apart, Unpacked):
            positions_RS = torch.arange(apart.token_BW.shape[1], device=ids_RS.device)[None]
            inputs["unpacked"], apart = apart, None
        inputs["attention_mask"] = apart
        if self.uses_own_attention():
            local_allowed = local_mask(local_attention(self.text_config), positions_RS, apart)
            inputs |= {"local_allowed": local_allowed} if local_allowed is not None else {}
        elif apart is not None and self.text_config._attn_implementation == "eager":  # added to the scores there
            dtype = torch.float32 if self.low_precision else self.causal.dtype
            inputs["attention_mask"] = torch.where(apart, 0.0, torch.finfo(dtype).min).to(dtype)
        # The backward pass needs the casts of weights; without one, and where layers run again in it, each has one use.
        keeps_casts = torch.is_grad_enabled() and not self.activation_checkpointing
        name = attention.NAME if self.own_attention else None
        with self._precision(keeps_casts=keeps_casts), attention_function(self.causal.config, name):
            trunk, options = trunk_of(self.causal), {**inputs, "use_cache": False}
            out = trunk(**options) if weights is None else functional_call(trunk, weights, kwargs=options)
        return out.last_hidden_state

    def logits(self, hidden_NH: Float[Tensor, "*N H"]) -> Float[Tensor, "*N V"]:
        """Next-token logits in float32 (float64 for a model in float64)."""
        with upcast(self.model) if self._upcasts else nullcontext():
            return model_logits(self.causal, hidden_NH, self.compute_dtype)

    def head(self) -> Head | None:
        """The head as one matrix; None if it is not a plain linear layer."""
        return plain_head(self.causal, self.compute_dtype)

    def frozen_copy(self) -> "Policy":
        model = self._copied().eval().requires_grad_(False)
        if self.compute_dtype == torch.bfloat16 and self.sharding is None:
            round_matrices(model)
        return Policy(
            model,
            self.tokenizer,
            self.eos_ids,
            self.pad_id,
            self.device,
            self.compute_dtype,
            graphed=self.graphed,
            own_attention=self.own_attention,
            long_rope=self.long_rope,
            shares_prompts=self.shares_prompts,
            low_precision=has_low_precision(model),
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
            own_attention=self.own_attention,
            long_rope=self.long_rope,
            shares_prompts=self.shares_prompts,
            low_precision=self.low_precision,
            sharding=self.sharding,
        )

    def _copied(self) -> Any:
        return deepcopy(self.model) if self.sharding is None else self.sharding.copy(self)

    def trunk_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The trainable weights without the head."""
        return [(name, p) for name, p in trunk_of(self.causal).named_parameters() if p.requires_grad]

    def _precision(self, *, keeps_casts: bool = True) -> AbstractContextManager[Any]:
        if self._upcasts:
            return upcast(self.model)
        return precision(self.device, self.compute_dtype, keeps_casts=keeps_casts)

    @property
    def _upcasts(self) -> bool:
        return self.low_precision and self.compute_dtype == torch.float32


def trunk_of(causal: Any) -> Any:
    """The model without its head. Llama 4's class names another attribute for it than it has."""
    base = causal.base_model
    return base if base is not causal else getattr(causal, "model", causal)


@contextmanager
def attention_function(config: Any, name: str | None) -> Iterator[None]:
    """Use a registered attention function, with no mask but the given one; without a name transformers' own.

    transformers would also inspect the positions for packed rows, which synchronizes with the device.
    """
    parts = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    before = {"": config._attn_implementation, **{key: part._attn_implementation for key, part in parts.items()}}
    if name is not None:
        config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


@torch.no_grad()
def attention_fits(policy: Policy) -> bool:
    """Whether the model calls `policy.attention` and gets its own hidden states by it, also behind a window's end. Some
    layers (StableLM) do not pass on the arguments that it needs."""
    ids, positions = test_row(policy, TEST_TOKENS)
    own, theirs = (replace(policy, own_attention=own, sampler=None) for own in (True, False))
    with shrunken_windows(policy.causal):
        expected = theirs.trunk(ids, positions)
        try:
            with recorded_callers() as callers:
                got = own.trunk(ids, positions, Unpacked.of_one(ids))
        except Exception:  # any model is possible: one that does not take our attention keeps its own
            return False
    return bool(callers) and close_enough(got, expected)


TEST_TOKENS = 12
"""Three times a shrunken window."""


def test_row(policy: Policy, width: int) -> tuple[Tensor, Tensor]:
    """Token ids 1, 2, 3 … and their positions, for a test pass."""
    positions_RS = torch.arange(width, device=policy.device)[None]
    return (positions_RS + 1) % policy.text_config.vocab_size, positions_RS


def close_enough(got: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding in float32, of values as large as these; never of numbers that are not finite."""
    scale = float(expected.std())
    return math.isfinite(scale) and torch.allclose(got, expected, atol=1e-3 * scale, rtol=1e-3)
