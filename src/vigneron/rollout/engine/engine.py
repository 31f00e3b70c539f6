"""The sampling engine: a static cache, one prefill per group, and rows refilled as they end (continuous batching).

On a CUDA device a decode step of all rows, sampling included, is one CUDA graph, captured once for each number of rows;
the host checks every few steps which rows have ended. On a CPU the steps run directly.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.core.draws import Sampling
from vigneron.policy.compiling import compile_layers
from vigneron.policy.cuda_graphs import CudaGraphs, round_to_bucket, round_up
from vigneron.policy.model import Policy
from vigneron.rollout.engine.decode_state import DecodeState, choose
from vigneron.rollout.engine.inference_model import InferenceModel
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.rollout.engine.schedule import Schedule
from vigneron.rollout.engine.stop_strings import stop_strings
from vigneron.timing import phase

# Bytes of key/value cache, unless a single row needs more; on a GPU at most an eighth of its memory.
CACHE_BYTES = {"cuda": 6 * 2**30, "mps": 2**30, "cpu": 2**30}


def cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return min(CACHE_BYTES["cuda"], torch.cuda.get_device_properties(device).total_memory // 8)
    return CACHE_BYTES[device.type]


class Engine:
    """Samples from the policy's current weights at each call."""

    exact = True

    def __init__(self, policy: Policy) -> None:
        self.notice: str | None = None
        self._policy = policy
        self.device, self.pad_id = policy.device, policy.pad_id
        self._model = InferenceModel(policy)
        self._graphs = CudaGraphs(policy.device)
        self._graphs.available &= self._model.own_attention  # other attention may wait for the device
        self.graphed = self._graphs.available
        self._set_ends()
        self._slots = 0
        self._capacity = 0
        self._new_tokens = 0
        self.state = DecodeState.empty(0, 0, policy.device, torch.float32)
        self._cache: list[Tensor] = []

    def _set_ends(self) -> None:
        self._end_ids = self._policy.eos_ids
        self.ends = torch.tensor(sorted(self._end_ids), dtype=torch.long, device=self.device)
        self._graphs.clear()

    def compile(self) -> None:
        """Use torch.compile for the decoder layers."""
        compile_layers(self._model.model)
        self._graphs.clear()

    @torch.no_grad()
    def sample(self, request: Request) -> Completions:
        with phase("weights"):
            self._model.refresh()
        if self._end_ids != self._policy.eos_ids:
            self._set_ends()
        slots = max(len(ids) for ids in request.prompt_ids) + request.max_new_tokens
        rows = min(self._rows_at_once(slots), len(request.prompt_ids))
        self._make_room(rows, slots, request.max_new_tokens)
        self._new_tokens = request.max_new_tokens
        stops = stop_strings(self._policy.tokenizer, request.stop)
        return Schedule(self, request, rows, blank_completions(request, self._policy), stops).run()

    def rows_for(self, count: int) -> int:
        """The number of rows, rounded up for CUDA graphs so that few sizes occur."""
        return round_up(count, 8 if count <= 128 else 32) if self.graphed else count

    def position_offset(self, prompt: int) -> int:
        """What is added to the positions of a sample with a prompt of so many tokens."""
        return self._policy.position_offset(prompt, self._new_tokens)

    def _rows_at_once(self, slots: int) -> int:
        numbers = sum(layer.heads * (layer.key_size + layer.value_size) for layer in self._model.attentions)
        return max(1, cache_bytes(self.device) // (numbers * slots * self._cache_dtype.itemsize))

    @property
    def _cache_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._policy.compute_dtype == torch.bfloat16 else self._policy.causal.dtype

    def _make_room(self, rows: int, slots: int, tokens: int) -> None:
        """Allocate a cache and a state that are large enough. New addresses invalidate all graphs.

        Without graphs the sizes are exact, so that results never depend on earlier requests.
        """
        rows, has = self.rows_for(rows), (self._capacity, self._slots, self.state.ids.shape[1] - 1)
        if self.graphed:
            slots = round_up(slots, 64)
            if all(have >= need for have, need in zip(has, (rows, slots, tokens), strict=True)):
                return
            grown = max(rows, self._capacity), max(slots, self._slots)
            if grown[0] <= self.rows_for(self._rows_at_once(grown[1])):
                rows, slots = grown
            tokens = max(tokens, has[2])
        elif has == (rows, slots, tokens):
            return
        self._graphs.clear()
        self._cache = []
        self._model.attach([torch.empty(0)] * (2 * len(self._model.attentions)))  # frees the old cache first
        device, dtype = self.device, self._cache_dtype
        shapes = [(at.heads, size) for at in self._model.attentions for size in (at.key_size, at.value_size)]
        planes: dict[int, Tensor] = {}
        for heads, size in dict.fromkeys(shapes):  # one tensor for all layers of a shape
            members = [number for number, shape in enumerate(shapes) if shape == (heads, size)]
            # One extra row takes the writes of padding prompts.
            self._cache.append(torch.zeros(len(members), rows + 1, heads, slots, size, dtype=dtype, device=device))
            planes |= dict(zip(members, self._cache[-1], strict=True))
        self.state = DecodeState.empty(rows, tokens, device, torch.float64 if dtype == torch.float64 else torch.float32)
        self._capacity, self._slots = rows, slots
        self._model.attach([planes[number] for number in range(len(shapes))])

    # ------------------------------------------------------------------------------ the two passes over the model

    def prefill(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
        """Write the keys and values of prompts into cache rows; return the state after each prompt."""
        count, width = len(prompts), max(len(prompt) for prompt in prompts)
        if self.graphed:
            count, width = round_to_bucket(count), min(round_up(width, 16), self._policy.context_length or self._slots)
        ids = torch.full((count, width), self._policy.pad_id)
        into = torch.full((count,), self._capacity)
        last = torch.zeros(count, dtype=torch.long)
        offset = torch.zeros(count, dtype=torch.long)
        for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            ids[i, : len(prompt)] = torch.tensor(prompt)
            into[i], last[i], offset[i] = row, len(prompt) - 1, self.position_offset(len(prompt))
        with torch.compiler.set_stance("force_eager"):  # too many shapes to compile each
            return self._graphs.run((count, width), self._prefill, [ids, into, last, offset])[: len(prompts)]

    def _prefill(self, ids_PS: Tensor, rows_P: Tensor, last_P: Tensor, offset_P: Tensor) -> Tensor:
        positions_PS = torch.arange(ids_PS.shape[1], device=ids_PS.device).expand_as(ids_PS)
        if self._policy.long_rope is not None:  # padding has no positions of its own, which would make a row longer
            positions_PS = torch.minimum(positions_PS, last_P[:, None]) + offset_P[:, None]
        hidden_PSH = self._model.hidden(ids_PS, positions_PS, cache_rows=rows_P)
        return hidden_PSH[torch.arange(len(last_P), device=last_P.device), last_P]

    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """Copy the cache of prompts to the other rows of their groups."""
        if targets:
            device = self.device
            source, target = to_device([sources, targets], device).unbind()
            for cache in self._cache:
                cache[:, target, :, :width] = cache[:, source, :, :width]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return self._model.logits(hidden_NH)

    def decode(self, count: int, sampling: Sampling | None) -> None:
        """Sample one more token in each of the first `count` rows."""
        self._graphs.run_step(("decode", count, sampling), lambda: self._decode(count, sampling), self.state.tensors())

    def _decode(self, count: int, sampling: Sampling | None) -> None:
        state = self.state.first(count)
        position_R1 = (state.slot + state.offset)[:, None]
        hidden_RH = self._model.hidden(state.last[:, None], position_R1, cache_slots=state.slot)[:, 0]
        token_R, logprob_R = choose(self._model.logits(hidden_RH), state.key, state.written, sampling)
        self.state.write(slice(0, count), token_R, logprob_R, self.ends)

    def compact(self, rows: Sequence[int]) -> None:
        """Move these rows to the front."""
        source = to_device(rows, self.device)
        self.state.move(source)
        for layer in (layer for cache in self._cache for layer in cache.split(2)):  # each move makes a copy
            layer[:, : len(rows)] = layer[:, source]

    def clear_graphs(self) -> None:
        self._graphs.clear()

    def stop_using_graphs(self, why: str) -> None:
        """Run every step directly from now on."""
        self.clear_graphs()
        self._graphs.available = self.graphed = False
        self._slots = 0  # what a broken capture has left in the cache and the state is dropped
        self.notice = f"sampling without CUDA graphs, which is slower: the model's layers cannot be captured: {why}"

    @property
    def model(self) -> Any:
        """The model that samples."""
        return self._model.model
