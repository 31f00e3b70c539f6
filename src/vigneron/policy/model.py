"""A causal language model as the rest of the code sees it: hidden states, and a head over them.

The trunk and the head are called apart, so that the head runs only where a completion needs it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vigneron.errors import UserError


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
        ids_BS: Int[Tensor, "B S"],
        positions_BS: Int[Tensor, "B S"],
        attention_BS: Tensor | None = None,
        cache: Any = None,
    ) -> Float[Tensor, "B S H"]:
        """Last hidden states, after the final norm. Positions are always explicit."""
        if self.activation_checkpointing:
            # transformers checkpoints in training mode only, and has no cache there. There is no dropout to turn on.
            self.model.train(torch.is_grad_enabled())
        with self._precision():
            out = self.causal.base_model(
                input_ids=ids_BS,
                position_ids=positions_BS,
                attention_mask=attention_BS,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return out.last_hidden_state

    def logits(self, hidden_NH: Float[Tensor, "*N H"]) -> Float[Tensor, "*N V"]:
        """Next-token logits in float32 (float64 for a model in float64)."""
        with self._precision():
            logits = self.causal.get_output_embeddings()(hidden_NH)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return apply_logit_shape(logits, self.causal.config)

    def frozen_copy(self) -> "Policy":
        model = deepcopy(self.model).eval().requires_grad_(False)
        return Policy(model, self.tokenizer, self.eos_ids, self.pad_id, self.device, self.compute_dtype)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.compute_dtype == torch.bfloat16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


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

    @contextmanager
    def active(self) -> Iterator[Policy]:
        with torch.no_grad():
            if self.shares_weights:
                with self.policy.model.disable_adapter():
                    yield self.policy
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
    ids = torch.tensor([[1, 2, 3, 4]], device=policy.device) % policy.causal.config.vocab_size
    positions = torch.arange(4, device=policy.device)[None]
    with policy._precision():
        expected = policy.causal(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
    got = policy.logits(policy.hidden(ids, positions)).float()
    if not torch.allclose(got, expected, atol=1e-3, rtol=1e-3):
        kind = policy.causal.config.model_type
        raise UserError(f"model: '{kind}' changes its logits after the head in a way Vigneron does not know")


def left_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows flush right, as decoding wants them, with the mask that says what is real."""
    return _pad(rows, pad_id, device, left=True)


def right_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows flush left: with causal attention no real token sees the padding, so no mask is needed."""
    return _pad(rows, pad_id, device, left=False)


def _pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, left: bool) -> tuple[Tensor, Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        at = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, at] = torch.tensor(row, dtype=torch.long)
        mask[i, at] = 1
    return ids.to(device), mask.to(device)


def positions_of(attention_BS: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """0, 1, 2 … from each row's first real token on, whatever stands before it."""
    return (attention_BS.cumsum(1) - 1).clamp(min=0)
