"""The sampling engine: a static cache, prompts computed once a group, rows refilled as they end.

On a CUDA device a step of all rows is one graph, with sampling in it, captured once for each number of rows; the host
looks every few steps which rows have ended. On a CPU the same steps run one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.compiling import compile_layers
from vigneron.core.draws import Sampling, draw_keys
from vigneron.policy.graphs import Graphs
from vigneron.policy.model import Policy
from vigneron.rollout.request import Completions, Request, blank_completions
from vigneron.rollout.rows import Rows, choose
from vigneron.rollout.twin import Twin
from vigneron.timing import phase

# How often the host looks which rows have ended.
LOOK_EVERY = {"cuda": 8, "mps": 8, "cpu": 1}
# Bytes of cache, unless one group needs more.
CACHE_BYTES = {"cuda": 6 * 2**30, "mps": 2**30, "cpu": 2**30}


@dataclass(frozen=True)
class Group:
    """Samples of one prompt that are admitted together."""

    prompt: tuple[int, ...]
    samples: tuple[int, ...]


class Engine:
    """Samples for a policy as it is at each call."""

    notice: str | None = None

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._twin = Twin(policy)
        self._graphs = Graphs(policy.device)
        self._set_ends()
        self._slots = 0
        self._capacity = 0
        self._rows = Rows.empty(0, 0, policy.device, torch.float32)
        self._cache = torch.empty(0)

    def _set_ends(self) -> None:
        self._end_ids = self._policy.eos_ids
        self._ends = torch.tensor(sorted(self._end_ids), dtype=torch.long, device=self._policy.device)
        self._graphs.clear()

    def compile(self) -> None:
        """Decoder layers through torch.compile from now on."""
        compile_layers(self._twin.model)
        self._graphs.clear()

    @torch.no_grad()
    def sample(self, request: Request) -> Completions:
        with phase("weights"):
            self._twin.refresh()
        if self._end_ids != self._policy.eos_ids:
            self._set_ends()
        slots = max(len(ids) for ids in request.prompt_ids) + request.max_new_tokens
        rows = min(self._rows_at_once(slots), len(request.prompt_ids))
        self._make_room(rows, slots, request.max_new_tokens)
        return _Sampling(self, request, rows).run()

    def rows_for(self, count: int) -> int:
        """Where a number of rows needs a graph, it is rounded up a little: few different ones occur."""
        if not self._graphs.available:
            return count
        return _rounded(count, 8 if count <= 128 else 32)

    def _rows_at_once(self, slots: int) -> int:
        _, heads, size = self._twin.attentions[0]
        row = 2 * len(self._twin.attentions) * heads * size * slots * self._cache_dtype.itemsize
        return max(1, CACHE_BYTES[self._policy.device.type] // row)

    @property
    def _cache_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._policy.compute_dtype == torch.bfloat16 else self._policy.causal.dtype

    def _make_room(self, rows: int, slots: int, tokens: int) -> None:
        """A cache and a state that are large enough. New addresses end all graphs.

        Without graphs they are exactly as large as asked: what is computed then never depends on earlier requests.
        """
        rows, has = self.rows_for(rows), (self._capacity, self._slots, self._rows.ids.shape[1] - 1)
        if self._graphs.available:
            slots = _rounded(slots, 64)
            if all(have >= need for have, need in zip(has, (rows, slots, tokens), strict=True)):
                return
            grown = max(rows, self._capacity), max(slots, self._slots)
            if grown[0] <= self.rows_for(self._rows_at_once(grown[1])):
                rows, slots = grown
            tokens = max(tokens, has[2])
        elif has == (rows, slots, tokens):
            return
        self._graphs.clear()
        self._cache = torch.empty(2, len(self._twin.attentions), 0)
        self._twin.attach(*self._cache)  # lets go of the old one first
        _, heads, size = self._twin.attentions[0]
        # One row more: prompts that only fill up a size write there.
        shape = (2, len(self._twin.attentions), rows + 1, heads, slots, size)
        device, dtype = self._policy.device, self._cache_dtype
        self._cache = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = Rows.empty(rows, tokens, device, torch.float64 if dtype == torch.float64 else torch.float32)
        self._capacity, self._slots = rows, slots
        self._twin.attach(*self._cache)

    # ------------------------------------------------------------------------------ the two passes over the model

    def prefill(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
        """Keys and values of prompts into cache rows; the state after each prompt."""
        count, width = len(prompts), max(len(prompt) for prompt in prompts)
        if self._graphs.available:
            count, width = _rounded(count, 8), _rounded(width, 16)
        ids = torch.full((count, width), self._policy.pad_id)
        into = torch.full((count,), self._capacity)
        last = torch.zeros(count, dtype=torch.long)
        for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            ids[i, : len(prompt)] = torch.tensor(prompt)
            into[i], last[i] = row, len(prompt) - 1
        with torch.compiler.set_stance("force_eager"):  # many shapes: compiling for each would cost more than it gives
            return self._graphs.replayed((count, width), self._prefill, [ids, into, last])[: len(prompts)]

    def _prefill(self, ids_PS: Tensor, rows_P: Tensor, last_P: Tensor) -> Tensor:
        positions_PS = torch.arange(ids_PS.shape[1], device=ids_PS.device).expand_as(ids_PS)
        hidden_PSH = self._twin.hidden(ids_PS, positions_PS, cache_rows=rows_P)
        return hidden_PSH[torch.arange(len(last_P), device=last_P.device), last_P]

    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """The cache of a prompt, for the other rows of its group."""
        if targets:
            device = self._policy.device
            source, target = to_device([sources, targets], device).unbind()
            self._cache[:, :, target, :, :width] = self._cache[:, :, source, :, :width]

    def decode(self, count: int, sampling: Sampling | None) -> None:
        """One more token in each of the first `count` rows."""
        self._graphs.stepped(("decode", count, sampling), lambda: self._decode(count, sampling), self._rows.tensors())

    def _decode(self, count: int, sampling: Sampling | None) -> None:
        rows = self._rows.first(count)
        hidden_RH = self._twin.hidden(rows.last[:, None], rows.slot[:, None], cache_slots=rows.slot)[:, 0]
        token_R, logprob_R = choose(self._twin.logits(hidden_RH), rows.key, rows.written, sampling)
        self._rows.write(slice(0, count), token_R, logprob_R, self._ends)

    def compact(self, kept: Sequence[int]) -> None:
        source = to_device(kept, self._policy.device)
        self._rows.move(source)
        self._cache[:, :, : len(kept)] = self._cache[:, :, source]


class _Sampling:
    """One request on its way through the engine's rows."""

    def __init__(self, engine: Engine, request: Request, rows: int) -> None:
        self.engine, self.request = engine, request
        # The next one last, longest first: prompts of like length go through the model together.
        self.waiting = sorted(_groups(request.prompt_ids, rows), key=lambda group: len(group.prompt))
        self.size = engine.rows_for(rows)
        self.rows, self.device = engine._rows, engine._policy.device
        names = to_device(list(request.sample_ids), self.device)
        self.keys = draw_keys(request.seed, request.step, names)
        self.done = blank_completions(request, engine._policy)
        self.owner: list[int | None] = [None] * self.size  # the sample in each row
        self.left = [0] * self.size  # tokens it may still get

    def run(self) -> Completions:
        look_every = LOOK_EVERY[self.device.type] if len(self.engine._ends) else self.request.max_new_tokens
        self.rows.running.fill_(False)
        self._admit(list(range(self.size)))
        while any(owner is not None for owner in self.owner):
            steps = min(look_every, max(self.left))
            with phase("decode"):
                for _ in range(steps):
                    self.engine.decode(self.size, self.request.sampling)
            self.left = [max(0, left - steps) for left in self.left]
            self._collect()
        return self.done

    def _collect(self) -> None:
        """Take out what has ended; fill its rows, or close ranks."""
        running = self.rows.running[: self.size].tolist()
        ended = [row for row, owner in enumerate(self.owner) if owner is not None and not running[row]]
        free = [row for row, owner in enumerate(self.owner) if owner is None or not running[row]]
        live = self.size - len(free)
        fits = self.waiting and len(self.waiting[-1].samples) <= len(free)
        smaller = self._size_for(live)
        if not (fits or live == 0 or (not self.waiting and smaller < self.size)):
            return
        self._take_out(ended)
        if self.waiting:
            self._admit(free)
        elif live and smaller < self.size:
            kept = [row for row, owner in enumerate(self.owner) if owner is not None]
            self.engine.compact(kept)
            spare = smaller - live
            self.owner = [*(self.owner[row] for row in kept), *[None] * spare]
            self.left = [*(self.left[row] for row in kept), *[0] * spare]
            self.rows.running[live:smaller] = False
            self.size = smaller

    def _size_for(self, live: int) -> int:
        """Where sizes need graphs they are halves of the first, so that every step of a run has the same few."""
        if not self.engine._graphs.available:
            return live if live <= 0.8 * self.size else self.size
        size = self.size
        while (half := self.engine.rows_for(size // 2)) >= live and half < size:
            size = half
        return size

    def _admit(self, free: list[int]) -> None:
        """As many groups as there are rows for: their prompts, and each sample's first token."""
        groups: list[tuple[Group, list[int]]] = []
        while self.waiting and len(self.waiting[-1].samples) <= len(free):
            group = self.waiting.pop()
            size = len(group.samples)
            if groups and not self._fits_beside(group, [group for group, _ in groups]):
                self._begin(groups)
                groups = []
            groups.append((group, free[:size]))
            free = free[size:]
        if groups:
            self._begin(groups)

    def _fits_beside(self, group: Group, others: list[Group]) -> bool:
        """Not less than half as long as the longest, and all of them, padded to it, not too many tokens."""
        longest = len(others[0].prompt)
        return 2 * len(group.prompt) > longest and longest * (len(others) + 1) <= self.request.tokens_at_once

    def _begin(self, groups: list[tuple[Group, list[int]]]) -> None:
        request, device = self.request, self.device
        with phase("prefill"):
            leaders = [rows[0] for _, rows in groups]
            hidden_PH = self.engine.prefill([group.prompt for group, _ in groups], leaders)
            followers = [(rows[0], row) for _, rows in groups for row in rows[1:]]
            self.engine.share_prompt(
                [source for source, _ in followers],
                [target for _, target in followers],
                max(len(group.prompt) for group, _ in groups),
            )
            logits_PV = self.engine._twin.logits(hidden_PH)
            samples = [sample for group, _ in groups for sample in group.samples]
            rows = [row for _, rows in groups for row in rows]
            lengths = [len(group.prompt) for group, _ in groups for _ in group.samples]
            of_prompt = [p for p, (group, _) in enumerate(groups) for _ in group.samples]
            at, sample, length, prompt = to_device([rows, samples, lengths, of_prompt], device).unbind()
            key = self.keys[sample]
            self.rows.start(at, slot=length, key=key, limit=torch.full_like(at, request.max_new_tokens))
            token, logprob = choose(logits_PV[prompt], key, torch.zeros_like(key), request.sampling)
            self.rows.write(at, token, logprob, self.engine._ends)
            self.done.prompt_hidden_BH[sample] = hidden_PH[prompt].to(self.done.prompt_hidden_BH.dtype)
        for row, owner in zip(rows, samples, strict=True):
            self.owner[row], self.left[row] = owner, request.max_new_tokens - 1

    def _take_out(self, ended: list[int]) -> None:
        if not ended:
            return
        owners = [self.owner[row] for row in ended]
        row, sample = to_device([ended, owners], self.device).unbind()
        width = self.request.max_new_tokens
        length = self.rows.written[row]
        real = torch.arange(width, device=self.device) < length[:, None]
        self.done.ids_BT[sample] = torch.where(real, self.rows.ids[row, :width], self.engine._policy.pad_id)
        self.done.behaviour_BT[sample] = torch.where(real, self.rows.logprobs[row, :width], 0.0)
        self.done.lengths_B[sample] = length
        self.done.truncated_B[sample] = ~self.rows.ended[row]
        for ended_row in ended:
            self.owner[ended_row] = None


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _groups(prompt_ids: Sequence[Sequence[int]], largest: int) -> list[Group]:
    """Neighbours with the same prompt, at most `largest` together."""
    groups: list[Group] = []
    for i, ids in enumerate(prompt_ids):
        if groups and groups[-1].prompt == tuple(ids) and len(groups[-1].samples) < largest:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].samples, i))
        else:
            groups.append(Group(tuple(ids), (i,)))
    return groups
