"""The memory of a model's passes, by running one on fake tensors: of any architecture, at its real size, in no memory.

A model of one layer and one of two give what a layer adds. Bytes are linear in the packed tokens and in those that
attention sees, so passes of three sizes give all others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vigneron.core.draws import Sampling
from vigneron.policy.architecture import is_recurrent, language_model_class, replaces_attention, reward_model_class
from vigneron.policy.attention import Unpacked
from vigneron.policy.fake_policy import Holding, fake_policy, meta_model
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.held_weights import castable
from vigneron.policy.kernel_shapes import shapes_only
from vigneron.policy.live_bytes import LiveBytes
from vigneron.policy.logprobs import ExactKl, head_statistics
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference

COMPILED_SHARE = 0.65
"""Of what autograd keeps, what is left with torch.compile, which computes norms and activations again. An assumption,
not measured on a GPU; AOTAutograd's partition of small Qwen2 and Llama layers on a CPU leaves 0.72."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Config keys of models with experts, whose passes depend on values."""
RUN_TOKENS = 1024
"""Of the smallest pass on fake tensors."""


@dataclass(frozen=True)
class TrunkBytes:
    """Of a training pass through the trunk."""

    saved: float
    """Kept for the backward pass, with bfloat16 casts of float32 weights."""
    forward: float
    """The most that is in use before the backward pass."""
    backward: float
    """What the backward pass needs beside `saved`, at its start, where most is in use."""
    casts: float = 0
    """Of `saved`, bfloat16 casts of float32 weights."""
    forward_casts: float = 0
    """Of `forward`."""

    def plus(self, other: "TrunkBytes", times: float) -> "TrunkBytes":
        """This, and another so many times."""
        mine, theirs = ([getattr(each, field.name) for field in fields(TrunkBytes)] for each in (self, other))
        return TrunkBytes(*(max(0, a + times * b) for a, b in zip(mine, theirs, strict=True)))

    def minus(self, other: "TrunkBytes") -> "TrunkBytes":
        """May be below 0."""
        mine, theirs = ([getattr(each, field.name) for field in fields(TrunkBytes)] for each in (self, other))
        return TrunkBytes(*(a - b for a, b in zip(mine, theirs, strict=True)))

    @property
    def beside_saved(self) -> float:
        return max(self.forward - self.saved, self.backward)


@dataclass(frozen=True)
class PassMemory:
    """The passes of a model of a config (of transformers), over samples of `width` tokens."""

    config: Any
    holding: Holding
    width: int
    scorer: bool = False
    heads: dict[Any, int] = field(default_factory=dict, compare=False, repr=False)
    """Of passes that were run through the head, which is the same with activation checkpointing."""

    @property
    def layers(self) -> int:
        return int(self.config.get_text_config().num_hidden_layers)

    def trunk(self, rows: int, tokens: int | None = None) -> TrunkBytes:
        """Of a training pass over `rows` samples; `tokens` are theirs if some share a prompt."""
        tokens = rows * self.width if tokens is None else tokens
        alone, twice, shared = self._sizes
        run = alone.plus(twice.minus(alone), rows / self._rows - 1)
        if tokens != rows * self.width and self.width > 1:
            run = run.plus(twice.minus(shared), (tokens - rows * self.width) / (self._rows * (self.width // 2)))
        if not self._compiled or self.holding.checkpointing:
            return run
        saved = run.casts + COMPILED_SHARE * (run.saved - run.casts)
        return replace(run, saved=saved, forward=run.forward - run.saved + saved)

    @property
    def _rows(self) -> int:
        return -(-RUN_TOKENS // self.width)

    @property
    def packs(self) -> bool:
        """Whether samples are packed into one row, with shared prompts once."""
        kind = (reward_model_class if self.scorer else language_model_class)(self.config)
        return replaces_attention(kind) and not is_recurrent(kind, self.config)

    @cached_property
    def _compiled(self) -> bool:
        """Layers whose parts are all fused are not compiled."""
        if not self.holding.compiled or not self.holding.fused or not self._has_one_layer:
            return self.holding.compiled
        with self._fake():
            return self._one_layer.compiled

    @cached_property
    def _has_one_layer(self) -> bool:
        """Whether a model of one layer can be built: the config of any architecture may say otherwise."""
        try:
            with self._fake():
                return bool(self._one_layer)
        except Exception:  # any model is possible
            return False

    @cached_property
    def _mode(self) -> FakeTensorMode:
        return FakeTensorMode()

    @cached_property
    def _one_layer(self) -> Policy:
        """Made within `_fake`."""
        return fake_policy(self.config, self.holding, 1, scorer=self.scorer)

    @cached_property
    def _sizes(self) -> tuple[TrunkBytes, TrunkBytes, TrunkBytes]:
        """Of a pass over a number of rows, over twice as many, and over these where two share a prompt that is half of
        them."""
        text, rows = self.config.get_text_config(), self._rows
        formula = [self._by_formula(count * self.width) for count in (rows, 2 * rows)]
        formula.append(self._by_formula(2 * rows * self.width - rows * (self.width // 2)))
        if not any(getattr(text, name, None) for name in EXPERTS) and not is_recurrent(type(None), self.config):
            try:
                return self._by_running()
            except Exception:  # any model is possible: some look at values, which fake tensors do not have
                pass
        return formula[0], formula[1], formula[2]

    def _by_formula(self, tokens: int) -> TrunkBytes:
        """About what a Llama's layers keep: norms and residuals in float32, and the inputs of products."""
        text = self.config.get_text_config()
        inner = inner_size(text)
        half = self.holding.compute == torch.bfloat16
        layer = tokens * (30 * text.hidden_size + 8 * inner if half else 36 * text.hidden_size + 16 * inner)
        kept = tokens * 4 * text.hidden_size if self.holding.checkpointing else layer
        saved = self.layers * kept
        temporaries = layer if self.holding.checkpointing else tokens * 8 * inner
        return TrunkBytes(saved, saved, temporaries)

    def _by_running(self) -> tuple[TrunkBytes, TrunkBytes, TrunkBytes]:
        one = self._run_trunk(1)
        if self.layers > 1:
            deeper = self._run_trunk(2, backward=False)
            more = [replace(two.minus(first), backward=0) for first, two in zip(one, deeper, strict=True)]
            one = [first.plus(each, self.layers - 1) for first, each in zip(one, more, strict=True)]
        return one[0], one[1], one[2]

    def _run_trunk(self, layers: int, *, backward: bool = True) -> list[TrunkBytes]:
        rows, half = self._rows, self.width // 2
        with self._fake():
            policy = self._one_layer
            if layers > 1:
                policy = fake_policy(self.config, self.holding, layers, scorer=self.scorer)
            known = _with_gradients(policy)
            sizes = [(rows, 0), (2 * rows, 0), (2 * rows, half if policy.own_attention else 0)]
            batches = [
                _fake_batch(count, self.width, prompt, packed=bool(policy.own_attention)) for count, prompt in sizes
            ]
            return [_trunk_pass(policy, known, batch, backward=backward) for batch in batches]

    @contextmanager
    def _fake(self) -> Iterator[None]:
        with self._mode:
            if self.holding.fused:
                with shapes_only():
                    yield
            else:
                yield

    def head(self, tokens: int, sampling: Sampling, *, exact_kl: bool) -> int:
        """The most that the head takes for so many completion tokens, backward pass included; more than two chunks
        take as much as two and their hidden states."""
        if self.scorer:
            return 0
        few = min(tokens, 2 * HEAD_CHUNK)
        hidden_size = self.config.get_text_config().hidden_size
        if self._compiled or not self._has_one_layer:
            return self._fused_head(few, exact_kl) + tokens * hidden_size * (4 + 2) * (1 + exact_kl)
        key = replace(self.holding, checkpointing=False), few, sampling, exact_kl
        if key not in self.heads:
            self.heads[key] = self._run_head(few, sampling, exact_kl)
        return self.heads[key] + (tokens - few) * hidden_size * (4 + 2) * (1 + exact_kl)

    def _fused_head(self, tokens: int, exact_kl: bool) -> int:
        """A chunk of logits and its gradient, the head's cast, and of a trained head the sum of its gradients, in
        float32 also that of a chunk: a compiled function makes no other tensors of these sizes."""
        text = self.config.get_text_config()
        half = self.holding.compute == torch.bfloat16
        logits = min(tokens, HEAD_CHUNK) * text.vocab_size * (4 * (1 + exact_kl) + (2 if half else 4))
        casts = 2 * (1 + exact_kl) if half and not self._head_in_bfloat16 else 0
        return logits + text.vocab_size * text.hidden_size * (casts + (0 if self.holding.lora else 4 if half else 8))

    @cached_property
    def _head_in_bfloat16(self) -> bool:
        """Not one that is tied to a scaled embedding, as Gemma's."""
        if not self.holding.bfloat16_weights:
            return False
        model = meta_model(self.config)
        head = model.get_output_embeddings()
        return any(head.weight is weight for weight in castable(model))

    def _run_head(self, few: int, sampling: Sampling, exact_kl: bool) -> int:
        with self._fake():
            policy = self._one_layer
            hidden = torch.empty(few, policy.hidden_size, requires_grad=True)
            ids = torch.zeros(few, dtype=torch.long)
            known = _with_gradients(policy)
            with LiveBytes([*known, hidden, ids]) as live:
                chosen = hidden[torch.arange(few)]
                other = ExactKl(Reference(policy, shares_weights=False)) if exact_kl else None
                states = [torch.empty_like(hidden)] if exact_kl else []
                statistics = head_statistics(policy, chosen, ids, sampling, other, states)
                sum((values.sum() for values in statistics), torch.zeros(())).backward()
            return live.peak


def inner_size(text: Any) -> int:
    """Of a text config: numbers between the matrices of a layer's MLP, of all experts that a token has."""
    experts = getattr(text, "num_experts_per_tok", None) or 1
    inner = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None) or 0
    inner = max(inner) if isinstance(inner, list) else inner  # Gemma 3n has one for each layer
    return int(experts * inner or 4 * text.hidden_size)


def _with_gradients(policy: Policy) -> list[Tensor]:
    """Its tensors, with the gradients of the microbatches before."""
    known = [*policy.model.parameters(), *policy.model.buffers()]
    for _, weight in policy.trainable():
        weight.grad = torch.empty_like(weight)
        known.append(weight.grad)
    return known


def _fake_batch(rows: int, width: int, prompt: int, *, packed: bool) -> tuple[Any, ...]:
    """Ids, positions, and the places of packed samples, two of which share a prompt of `prompt` tokens."""
    if not packed:
        return torch.zeros(rows, width, dtype=torch.long), torch.arange(width).expand(rows, width)
    shared = rows // 2 * prompt
    tokens = rows * width - shared
    ids, positions = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(1, tokens, dtype=torch.long)
    places = ((rows, width), (tokens,), (shared,), (shared, 2))
    return ids, positions, Unpacked(*(torch.zeros(shape, dtype=torch.long) for shape in places))


def _trunk_pass(policy: Policy, known: list[Tensor], batch: tuple[Any, ...], *, backward: bool) -> TrunkBytes:
    peaks: list[int] = []
    live = LiveBytes(known)

    def at_embedding(module: Any, given: Any, out: Tensor) -> None:
        if out.requires_grad:  # the embedding's own gradient comes when all else is freed
            out.register_hook(lambda _: peaks.append(live.peak))

    hook = policy.causal.get_input_embeddings().register_forward_hook(at_embedding)
    with live:
        hidden = policy.trunk(*batch)
        saved, forward, casts = live.now, live.peak, (live.casts, live.peak_casts)
        if backward:
            live.peak = live.now
            hidden.backward(torch.empty_like(hidden))
    hook.remove()
    return TrunkBytes(saved, forward, min([*peaks, live.peak]) - saved if backward else 0, *casts)
