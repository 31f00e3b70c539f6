"""The memory of a model's passes, by running one on fake tensors: of any architecture, at its real size, in no memory.

A model of one layer and one of two give what a layer adds; rows are all alike, so two numbers of rows give the rest.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vigneron.core.draws import Sampling
from vigneron.policy.architecture import auto_class, is_recurrent, replaces_attention
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.checkpointing import checkpoint_layers
from vigneron.policy.frozen import castable
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.load import _freeze_encoders
from vigneron.policy.logprobs import ExactKl, head_statistics
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy, Reference

CAST = torch.ops.aten._to_copy.default
COMPILED_SHARE = 0.65
"""Of what autograd keeps, what is left with torch.compile, which computes norms and activations again. An assumption,
not measured on a GPU; AOTAutograd's partition of small Qwen2 and Llama layers on a CPU leaves 0.72."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Config keys of models with experts, whose passes depend on values."""
BLOCK = 512
"""torch's CUDA allocator rounds up to this number of bytes."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made meanwhile and still in use, and their peak."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.casts = self.peak_casts = 0
        """Of these, bytes of the known tensors' casts to another dtype."""
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._sizes: dict[int, tuple[int, bool]] = {}
        self._kept = list(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_cast = func is CAST and args[0].untyped_storage()._cdata in self._known
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), is_cast)
        return out

    def _add(self, storage: Any, is_cast: bool) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self._sizes[key] = size, is_cast
        self.now += size
        self.casts += size * is_cast
        if self.now > self.peak:
            self.peak, self.peak_casts = self.now, self.casts
        finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        size, is_cast = self._sizes.pop(key)
        self.now -= size
        self.casts -= size * is_cast


@dataclass(frozen=True)
class Holding:
    """How a policy's weights are held, and passes computed."""

    compute: torch.dtype = torch.bfloat16
    narrow: bool = False
    """Whether matrices and embeddings (of a base, under an adapter) are in bfloat16, as `castable`."""
    lora: Lora | None = None
    checkpointing: bool = False
    compiled: bool = False


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
        return TrunkBytes(*(a + times * b for a, b in zip(mine, theirs, strict=True)))

    @property
    def beside_saved(self) -> float:
        return max(self.forward - self.saved, self.backward)


@dataclass(frozen=True)
class PassMemory:
    """The passes of a model of a config (of transformers), over rows of `width` tokens."""

    config: Any
    holding: Holding
    width: int
    scorer: bool = False

    @property
    def layers(self) -> int:
        return int(self.config.get_text_config().num_hidden_layers)

    def trunk(self, rows: int) -> TrunkBytes:
        """Of a training pass over `rows` rows."""
        one, two = self._two_sizes
        run = one.plus(two.plus(one, -1), rows - 1)
        if not self.holding.compiled or self.holding.checkpointing:
            return run
        saved = run.casts + COMPILED_SHARE * (run.saved - run.casts)
        return replace(run, saved=saved, forward=run.forward - run.saved + saved)

    @cached_property
    def _two_sizes(self) -> tuple[TrunkBytes, TrunkBytes]:
        """Of a pass over one row, and over two."""
        text = self.config.get_text_config()
        if any(getattr(text, name, None) for name in EXPERTS) or is_recurrent(type(None), self.config):
            return self._by_formula(1), self._by_formula(2)
        try:
            return self._by_running()
        except Exception:  # any model is possible: some look at values, which fake tensors do not have
            return self._by_formula(1), self._by_formula(2)

    def _by_formula(self, rows: int) -> TrunkBytes:
        """About what a Llama's layers keep: norms and residuals in float32, and the inputs of products."""
        text, tokens = self.config.get_text_config(), rows * self.width
        experts = getattr(text, "num_experts_per_tok", None) or 1
        inner = experts * (getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", 0) or 0)
        inner = inner or 4 * text.hidden_size
        half = self.holding.compute == torch.bfloat16
        layer = tokens * (30 * text.hidden_size + 8 * inner if half else 36 * text.hidden_size + 16 * inner)
        kept = tokens * 4 * text.hidden_size if self.holding.checkpointing else layer
        saved = self.layers * kept
        temporaries = layer if self.holding.checkpointing else tokens * 8 * inner
        return TrunkBytes(saved, saved, temporaries)

    def _by_running(self) -> tuple[TrunkBytes, TrunkBytes]:
        one, two = self._run_trunk(1, rows=(1, 2))
        if self.layers == 1:
            return one, two
        deeper = self._run_trunk(2, rows=(1,), backward=False)[0]
        # What a layer adds to a pass over two rows: twice as much, but the casts of its weights once.
        more = replace(deeper.plus(one, -1), backward=0)
        twice = TrunkBytes(
            2 * more.saved - more.casts, 2 * more.forward - more.forward_casts, 0, more.casts, more.forward_casts
        )
        return one.plus(more, self.layers - 1), two.plus(twice, self.layers - 1)

    def _run_trunk(self, layers: int, *, rows: Sequence[int], backward: bool = True) -> list[TrunkBytes]:
        with FakeTensorMode():
            policy = fake_policy(self.config, self.holding, layers, scorer=self.scorer)
            known = _with_gradients(policy)
            return [_trunk_pass(policy, known, count, self.width, backward=backward) for count in rows]

    def head(self, tokens: int, sampling: Sampling, *, exact_kl: bool) -> int:
        """The most that the head takes for so many completion tokens, backward pass included; more than two chunks
        take as much as two and their hidden states."""
        if self.scorer:
            return 0
        few = min(tokens, 2 * HEAD_CHUNK)
        hidden_size = self.config.get_text_config().hidden_size
        if self.holding.compiled:
            return self._fused_head(few, exact_kl) + tokens * hidden_size * (4 + 2) * (1 + exact_kl)
        return int(self._head_runs(few, sampling, exact_kl)) + (tokens - few) * hidden_size * (4 + 2) * (1 + exact_kl)

    def _fused_head(self, tokens: int, exact_kl: bool) -> int:
        """A chunk of logits and its gradient, the head's cast, and of a trained head the gradient of a chunk and the
        sum of all: a compiled function makes no other tensors of these sizes."""
        text = self.config.get_text_config()
        half = self.holding.compute == torch.bfloat16
        logits = min(tokens, HEAD_CHUNK) * text.vocab_size * (4 * (1 + exact_kl) + (2 if half else 4))
        casts = 2 * (1 + exact_kl) if half and not self.holding.narrow else 0
        return logits + text.vocab_size * text.hidden_size * (casts + (0 if self.holding.lora else 8))

    @cached_property
    def _head_runs(self) -> Any:
        return cache(self._run_head)

    def _run_head(self, few: int, sampling: Sampling, exact_kl: bool) -> int:
        with FakeTensorMode():
            policy = fake_policy(self.config, self.holding, 1)
            hidden = torch.empty(few, policy.hidden_size, requires_grad=True)
            ids = torch.zeros(few, dtype=torch.long)
            known = _with_gradients(policy)
            with LiveBytes([*known, hidden, ids]) as live:
                chosen = hidden[torch.arange(few)]
                other = ExactKl(Reference(policy, shares_weights=False)) if exact_kl else None
                states = torch.empty_like(hidden) if exact_kl else None
                statistics = head_statistics(policy, chosen, ids, sampling, other, states)
                sum((values.sum() for values in statistics), torch.zeros(())).backward()
            return live.peak


def _with_gradients(policy: Policy) -> list[Tensor]:
    """Its tensors, with the gradients of the microbatches before."""
    known = [*policy.model.parameters(), *policy.model.buffers()]
    for _, weight in policy.trainable():
        weight.grad = torch.empty_like(weight)
        known.append(weight.grad)
    return known


def _trunk_pass(policy: Policy, known: list[Tensor], rows: int, width: int, *, backward: bool) -> TrunkBytes:
    ids, positions = torch.zeros(rows, width, dtype=torch.long), torch.arange(width).expand(rows, width)
    peaks: list[int] = []
    live = LiveBytes(known)

    def at_embedding(module: Any, given: Any, out: Tensor) -> None:
        if out.requires_grad:  # the embedding's own gradient comes when all else is freed
            out.register_hook(lambda _: peaks.append(live.peak))

    hook = policy.causal.get_input_embeddings().register_forward_hook(at_embedding)
    with live:
        hidden = policy.trunk(ids, positions)
        saved, forward, casts = live.now, live.peak, (live.casts, live.peak_casts)
        if backward:
            live.peak = live.now
            hidden.backward(torch.empty_like(hidden))
    hook.remove()
    return TrunkBytes(saved, forward, min([*peaks, live.peak]) - saved if backward else 0, *casts)


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
        checkpoint_layers(causal)
    _make_fake(model, {id(weight) for weight in castable(causal)} if holding.narrow else set())
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


def _make_fake(model: nn.Module, narrow: set[int]) -> None:
    """Replace weights and buffers on the meta device by fake ones on the CPU, whose autocast then works."""
    fakes: dict[int, Tensor] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                dtype = torch.bfloat16 if id(weight) in narrow else weight.dtype
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
    return config
