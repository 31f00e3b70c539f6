"""The sampling engine: a static cache, paged where its kernel runs, prompts shared within their group, and rows
refilled as they end (continuous batching).

On a CUDA device a decode step of all rows, sampling included, is one CUDA graph, captured once for each number of rows;
the host checks every few steps which rows have ended. On a CPU the steps run directly. `key_value_cache` has the cache.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.core.draws import Sampling
from vigneron.policy.compiling import compile_layers
from vigneron.policy.cuda_graphs import CudaGraphs, round_to_bucket, round_up
from vigneron.policy.model import MOST_GRAPHED, Policy
from vigneron.rollout.engine.cached_attention import Chunk
from vigneron.rollout.engine.conversation_schedule import ConversationSchedule
from vigneron.rollout.engine.decode_state import DecodeState, choose
from vigneron.rollout.engine.decode_tiles import PAGE, Slots
from vigneron.rollout.engine.inference_model import InferenceModel
from vigneron.rollout.engine.key_value_cache import KeyValueCache, Room, pages_for
from vigneron.rollout.engine.prompt_groups import prompt_groups
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.rollout.engine.schedule import Schedule
from vigneron.rollout.engine.stop_strings import stop_strings
from vigneron.timing import phase

PREFILL_TOKENS = 8192
"""Longer prompts are prefilled in parts of so many tokens."""
CHUNK_TOKENS = 512
"""Longer replies are read in parts of so many tokens."""


def row_step(count: int) -> int:
    """Numbers of rows are multiples of this."""
    return 1 if count <= 8 else 8 if count <= 128 else 32


def rows_within(count: int) -> int:
    """The largest number of rows that CUDA graphs have, up to `count`."""
    return count // row_step(count) * row_step(count)


class Engine:
    """Samples from the policy's current weights at each call."""

    exact = True
    converses = True
    """Keeps its cache from turn to turn."""

    def __init__(self, policy: Policy, *, fused: bool = True) -> None:
        self.notice: str | None = None
        self._policy = policy
        self.device, self.pad_id = policy.device, policy.pad_id
        self._model = InferenceModel(policy, fused=fused)
        self.fused = self._model.fused
        self._graphs = CudaGraphs(policy.device)
        self._graphs.available &= self._model.own_attention  # other attention may wait for the device
        self.graphed = self._graphs.available
        self.reads_chunks: bool | None = None  # not checked yet
        self._set_ends()
        self._new_tokens = 0
        wide = torch.promote_types(policy.compute_dtype, policy.causal.dtype)
        dtype = torch.bfloat16 if policy.compute_dtype == torch.bfloat16 else wide
        self._cache = KeyValueCache(self._model, dtype, policy.cache_bytes)
        self.state = DecodeState.empty(0, 0, policy.device, torch.float32)

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
        stops = stop_strings(self._policy.tokenizer, request.stop)
        whole = request.replies is not None or not (self._end_ids or stops)  # see `Schedule`
        groups = prompt_groups(request.prompt_ids)
        room = self._cache.room_for(groups, request.width, rounded=self.graphed, whole=whole)
        if self.graphed:
            more = replace(room, rows=self.rows_for(room.rows))
            all_fit = room.rows == len(request.prompt_ids) and self._cache.fits(more)
            room = more if all_fit else replace(room, rows=rows_within(room.rows))
        self._make_room(room, zeroed=request.replies is not None)
        self._new_tokens = request.width
        try:
            done = blank_completions(request, self._policy)
            if request.replies is not None:
                return ConversationSchedule(self, request, request.replies, room, done, stops).run()
            return Schedule(self, request, room, done, stops).run()
        finally:
            self._cache.give_back()

    def rows_for(self, count: int) -> int:
        """The number of rows, rounded up for CUDA graphs so that few sizes occur."""
        return round_up(count, row_step(count)) if self.graphed else count

    def position_offset(self, prompt: int) -> int:
        """What is added to the positions of a sample with a prompt of so many tokens."""
        return self._policy.position_offset(prompt, self._new_tokens)

    @property
    def paged(self) -> bool:
        return self._cache.paged

    def _make_room(self, room: Room, *, zeroed: bool) -> None:
        """Have a cache and a state that are large enough. New addresses invalidate all graphs.

        Without graphs the sizes are exact, so that results never depend on earlier requests.
        """
        if self.graphed:
            room = self._cache.grown(room)
        if self._cache.room != room:
            self._graphs.clear()
            self._cache.allocate(room)
            dtype = torch.float64 if self._cache.dtype == torch.float64 else torch.float32
            self.state = DecodeState.empty(room.rows, room.new_tokens, self.device, dtype, pages=room.row_pages)
        self._cache.take_back(zeroed=zeroed)

    # ------------------------------------------------------------------------------ the two passes over the model

    def prefill(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Tensor:
        """Write the keys and values of prompts into their places: pages, or a row. Returns the state after each
        prompt."""
        count, width = len(prompts), max(len(prompt) for prompt in prompts)
        if self.graphed:
            count, width = round_to_bucket(count), min(round_up(width, 16), self._policy.context_length or width)
            width = min(width, self._cache.room.widest_prompt)
        ids = torch.full((count, width), self._policy.pad_id)
        into = torch.full((count, pages_for(width) if self.paged else 1), self._cache.room.spare)
        last = torch.zeros(count, dtype=torch.long)
        offset = torch.zeros(count, dtype=torch.long)
        for i, (prompt, place) in enumerate(zip(prompts, places, strict=True)):
            ids[i, : len(prompt)] = torch.tensor(prompt)
            into[i, : len(place)] = torch.tensor(place)
            last[i], offset[i] = len(prompt) - 1, self.position_offset(len(prompt))
        into = into if self.paged else into[:, 0]
        parts = []
        step = PREFILL_TOKENS if self._model.own_attention else width
        for first in range(0, width, step):
            written = into[:, : pages_for(first + step)] if self.paged else into  # as wide as the graph's key says
            inputs = [ids[:, first : first + step], written, last, offset]
            key = (*inputs[0].shape, first)
            state_PH = self._pass(key, inputs[0].numel(), partial(self._prefill, first), inputs)
            parts.append(state_PH.clone() if width > step else state_PH)  # a graph's result is overwritten
        if len(parts) == 1:
            return parts[0][: len(prompts)]
        part_of_P = (last // step).to(self.device)
        return torch.stack(parts)[part_of_P, torch.arange(count, device=self.device)][: len(prompts)]

    def _prefill(self, first: int, ids_PS: Tensor, rows_P: Tensor, last_P: Tensor, offset_P: Tensor) -> Tensor:
        width = ids_PS.shape[1]
        positions_PS = torch.arange(first, first + width, device=ids_PS.device).expand_as(ids_PS)
        if self._policy.long_rope is not None:  # padding has no positions of its own, which would make a row longer
            positions_PS = torch.minimum(positions_PS, last_P[:, None]) + offset_P[:, None]
        hidden_PSH = self._model.hidden(ids_PS, positions_PS, cache_rows=rows_P, cache_first=first)
        at_P = (last_P - first).clamp(0, width - 1)
        return hidden_PSH[torch.arange(len(last_P), device=last_P.device), at_P]

    def read(self, rows: Sequence[int], lengths: Sequence[int], prompts: Sequence[int], written: Sequence[int]) -> None:
        """Read the next given tokens of rows, so many each, in few passes instead of one decode step a token. `prompts`
        and `written` are the tokens of each row's prompt, and those behind it, before the given ones."""
        starts = [0 if self.paged else prompt for prompt in prompts]  # of the tokens in a row's own cache
        pasts = [start + count - 1 for start, count in zip(starts, written, strict=True)]
        for first in range(0, max(lengths), CHUNK_TOKENS):
            still = [i for i, length in enumerate(lengths) if length > first]
            left = [min(CHUNK_TOKENS, lengths[i] - first) for i in still]
            chosen = [rows[i] for i in still]
            past, width = max(pasts[i] for i in still) + first, max(left)
            if self.graphed and self._is_small(len(chosen) * width):  # few sizes: the last row is read several times
                more = round_to_bucket(len(chosen), per_doubling=2) - len(chosen)
                chosen, left = chosen + chosen[-1:] * more, left + left[-1:] * more
                past, width = round_to_bucket(past, per_doubling=1, smallest_step=PAGE), round_to_bucket(width)
            inputs = [torch.tensor(chosen), torch.tensor(left)]
            key = ("read", len(chosen), first, past, width)
            self._pass(key, len(chosen) * width, partial(self._read, first, past, width), inputs)
        self.state.skip(*to_device([rows, lengths], self.device).unbind())

    def _read(self, first: int, past: int, width: int, row_N: Tensor, length_N: Tensor) -> Tensor:
        state = self.state
        chunk = Chunk(row_N, state.slot[row_N] + first, length_N, past, width)
        if self.paged:
            count = self._cache.room.prompt_pages + pages_for(past + width)
            chunk = replace(chunk, start_N=state.start[row_N], pages_NM=state.pages[row_N, :count])
        position_NS = chunk.positions() + state.offset[row_N][:, None]
        hidden_NSH = self._model.hidden(state.unread(row_N, first, width), position_NS, cache_chunk=chunk)
        return hidden_NSH[:, 0].clone()

    def _pass(self, key: Hashable, tokens: int, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """A pass over so many tokens. Only a small one is a CUDA graph, which keeps the memory of its pass."""
        with torch.compiler.set_stance("force_eager"):  # too many shapes to compile each
            if self._is_small(tokens):
                return self._graphs.run(key, function, inputs)
            return function(*(tensor.to(self.device) for tensor in inputs))

    def _is_small(self, tokens: int) -> bool:
        return tokens * self._policy.size <= MOST_GRAPHED

    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """Copy the cache of prompts to the other rows of their groups."""
        if targets:
            source, target = to_device([sources, targets], self.device).unbind()
            self._cache.copy_prompts(source, target, width)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return self._model.logits(hidden_NH)

    def decode(self, count: int, sampling: Sampling | None) -> None:
        """Sample one more token in each of the first `count` rows."""
        self._graphs.run_step(("decode", count, sampling), lambda: self._decode(count, sampling), self.state.tensors())

    def _decode(self, count: int, sampling: Sampling | None) -> None:
        state = self.state.first(count)
        position_R1 = (state.slot + state.offset)[:, None]
        slots = Slots(state.slot, state.start, state.pages) if self.paged else Slots(state.slot)
        hidden_RH = self._model.hidden(state.last[:, None], position_R1, cache_slots=slots)[:, 0]
        token_R, logprob_R = choose(self._model.logits(hidden_RH), state.key, state.written - state.given, sampling)
        self.state.write(slice(0, count), token_R, logprob_R, self.ends)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move rows to the places of others."""
        if targets:
            source, target = to_device([sources, targets], self.device).unbind()
            self.state.move(source, target)
            if not self.paged:
                self._cache.move(source, target)

    def clear_graphs(self) -> None:
        self._graphs.clear()

    def stop_using_graphs(self, why: str) -> None:
        """Run every step directly from now on."""
        self.clear_graphs()
        self._graphs.available = self.graphed = False
        self._cache.allocate(Room())  # what a broken capture has left in the cache and the state is dropped
        self.notice = f"sampling without CUDA graphs, which is slower: the model's layers cannot be captured: {why}"

    @property
    def model(self) -> Any:
        """The model that samples."""
        return self._model.model
