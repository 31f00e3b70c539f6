"""Assignment of samples to rows: groups are admitted to free rows, samples leave when they end, and rows are compacted
when no group is waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.core.draws import Sampling, draw_keys
from vigneron.rollout.engine.decode_state import DecodeState, choose
from vigneron.rollout.engine.key_value_cache import Room
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.stop_strings import StopStrings
from vigneron.timing import phase

# Decode steps between checks of which rows have ended.
CHECK_EVERY = {"cuda": 8, "mps": 8, "cpu": 1}


@dataclass(frozen=True)
class Group:
    """Samples of one prompt that are admitted together."""

    prompt: tuple[int, ...]
    samples: tuple[int, ...]


class Decoder(Protocol):
    """The part of the engine that a schedule uses."""

    device: torch.device
    state: DecodeState
    ends: Tensor
    pad_id: int
    graphed: bool

    def rows_for(self, count: int) -> int: ...
    def position_offset(self, prompt: int) -> int: ...
    def prefill(self, prompts: Sequence[Sequence[int]], places: Sequence[int]) -> Tensor: ...
    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None: ...
    def logits(self, hidden_NH: Tensor) -> Tensor: ...
    def decode(self, count: int, sampling: Sampling | None) -> None: ...
    def compact(self, rows: Sequence[int]) -> None: ...


class Schedule:
    """The processing of one request."""

    def __init__(
        self, engine: Decoder, request: Request, room: Room, done: Completions, stops: StopStrings | None = None
    ) -> None:
        self.engine, self.request, self.done, self.stops = engine, request, done, stops
        # A stack with the longest prompt on top: prompts of similar length are prefilled together.
        self.waiting = sorted(_groups(request.prompt_ids, room.rows), key=lambda group: len(group.prompt))
        self.size = engine.rows_for(room.rows)
        self.state, self.device = engine.state, engine.device
        names = to_device(list(request.sample_ids), self.device)
        self.keys = draw_keys(request.seed, request.step, names)
        self.owner: list[int | None] = [None] * self.size  # the sample in each row
        self.left = [0] * self.size  # tokens left for the sample in each row
        self.shares = room.prompts > 0
        self.prompt: list[int] = [0] * self.size  # with shared prompts, the one of each row
        self.unused = list(range(room.prompts))  # prompts of the cache
        self.users = [0] * room.prompts  # samples of each prompt that have not ended
        self.stopped: set[int | None] = set()  # samples that a stop string has ended

    def run(self) -> Completions:
        ends = len(self.engine.ends) > 0 or self.stops is not None
        check_every = CHECK_EVERY[self.device.type] if ends else self.request.max_new_tokens
        self.state.running.fill_(False)
        self._admit(list(range(self.size)))
        while any(owner is not None for owner in self.owner):
            steps = min(check_every, max(self.left))
            with phase("decode"):
                for _ in range(steps):
                    self.engine.decode(self.size, self.request.sampling)
            self.left = [max(0, left - steps) for left in self.left]
            if self.stops is not None:
                self._end_at_stop_strings(self.stops, steps + 1)  # a new row's first token is one more
            self._update_rows()
        return self.done

    def _end_at_stop_strings(self, stops: StopStrings, new: int) -> None:
        """End rows whose last `new` tokens complete a stop string; tokens that were sampled behind it are dropped."""
        written_R = self.state.written[: self.size]
        column_RN = written_R[:, None] - 1 - torch.arange(new, device=self.device)
        token_RN = self.state.ids[: self.size].gather(1, column_RN.clamp(min=0))
        can_end = (stops.can_end(token_RN) & (column_RN >= 0)).any(1).tolist()
        rows = [row for row, owner in enumerate(self.owner) if can_end[row] and owner not in self.stopped]
        if not (rows := [row for row in rows if self.owner[row] is not None]):
            return
        at = to_device(rows, self.device)
        texts = zip(self.state.ids[at].tolist(), written_R[at].tolist(), strict=True)
        ends = [stops.end(ids[:count], max(0, count - new)) for ids, count in texts]
        ended = [(row, end) for row, end in zip(rows, ends, strict=True) if end is not None]
        if ended:
            at, end = to_device(list(zip(*ended, strict=True)), self.device).unbind()
            self.state.written[at], self.state.ended[at], self.state.running[at] = end, True, False
            self.stopped |= {self.owner[row] for row, _ in ended}

    def _update_rows(self) -> None:
        """Collect samples that have ended; refill their rows or compact."""
        running = self.state.running[: self.size].tolist()
        self.left = [left if runs else 0 for left, runs in zip(self.left, running, strict=True)]
        ended = [row for row, owner in enumerate(self.owner) if owner is not None and not running[row]]
        free = [row for row, owner in enumerate(self.owner) if owner is None or not running[row]]
        live = self.size - len(free)
        fits = self.waiting and len(self.waiting[-1].samples) <= len(free)
        smaller = self._size_for(live)
        if not (fits or live == 0 or (not self.waiting and smaller < self.size)):
            return
        self._collect_ended(ended)
        if self.waiting:
            self._admit(free)
        elif live and smaller < self.size:
            rows = [row for row, owner in enumerate(self.owner) if owner is not None]
            self.engine.compact(rows)
            spare = smaller - live
            self.owner = [*(self.owner[row] for row in rows), *[None] * spare]
            self.left = [*(self.left[row] for row in rows), *[0] * spare]
            self.prompt = [*(self.prompt[row] for row in rows), *[0] * spare]
            self.state.running[live:smaller] = False
            self.size = smaller

    def _size_for(self, live: int) -> int:
        """The number of rows for `live` samples. With CUDA graphs it is halved repeatedly, so that few sizes occur."""
        if not self.engine.graphed:
            return live if live <= 0.8 * self.size else self.size
        size = self.size
        while (half := self.engine.rows_for(size // 2)) >= live and half < size:
            size = half
        return size

    def _admit(self, free: list[int]) -> None:
        """Start as many groups as fit: prefill their prompts and sample each first token."""
        groups: list[tuple[Group, list[int]]] = []
        prompts = len(self.unused)
        while self.waiting and len(self.waiting[-1].samples) <= len(free) and (prompts or not self.shares):
            group = self.waiting.pop()
            size = len(group.samples)
            prompts -= 1
            if groups and not self._fits_beside(group, [group for group, _ in groups]):
                self._start(groups)
                groups = []
            groups.append((group, free[:size]))
            free = free[size:]
        if groups:
            self._start(groups)

    def _fits_beside(self, group: Group, others: list[Group]) -> bool:
        """Whether its prompt is more than half as long as the longest, and the padded batch within the token limit."""
        longest = len(others[0].prompt)
        return 2 * len(group.prompt) > longest and longest * (len(others) + 1) <= self.request.microbatch_tokens

    def _start(self, groups: list[tuple[Group, list[int]]]) -> None:
        request, device = self.request, self.device
        with phase("prefill"):
            places = [self.unused.pop() if self.shares else rows[0] for _, rows in groups]
            hidden_PH = self.engine.prefill([group.prompt for group, _ in groups], places)
            if not self.shares:
                followers = [(rows[0], row) for _, rows in groups for row in rows[1:]]
                self.engine.share_prompt(
                    [source for source, _ in followers],
                    [target for _, target in followers],
                    max(len(group.prompt) for group, _ in groups),
                )
            logits_PV = self.engine.logits(hidden_PH)
            samples = [sample for group, _ in groups for sample in group.samples]
            rows = [row for _, rows in groups for row in rows]
            lengths = [len(group.prompt) for group, _ in groups for _ in group.samples]
            of_prompt = [p for p, (group, _) in enumerate(groups) for _ in group.samples]
            offsets = [self.engine.position_offset(length) for length in lengths]
            shared = [places[p] if self.shares else 0 for p in of_prompt]
            at, sample, length, prompt, offset, place = to_device(
                [rows, samples, lengths, of_prompt, offsets, shared], device
            ).unbind()
            key = self.keys[sample]
            limit = torch.full_like(at, request.max_new_tokens)
            self.state.begin(at, length=length, offset=offset, key=key, limit=limit, prompt=place)
            token, logprob = choose(logits_PV[prompt], key, torch.zeros_like(key), request.sampling)
            self.state.write(at, token, logprob, self.engine.ends)
            self.done.prompt_hidden_BH[sample] = hidden_PH[prompt].to(self.done.prompt_hidden_BH.dtype)
        for row, owner, shared_place in zip(rows, samples, shared, strict=True):
            self.owner[row], self.left[row], self.prompt[row] = owner, request.max_new_tokens - 1, shared_place
            if self.shares:
                self.users[shared_place] += 1

    def _collect_ended(self, ended: list[int]) -> None:
        if not ended:
            return
        owners = [self.owner[row] for row in ended]
        row, sample = to_device([ended, owners], self.device).unbind()
        width = self.request.max_new_tokens
        length = self.state.written[row]
        real = torch.arange(width, device=self.device) < length[:, None]
        self.done.ids_BT[sample] = torch.where(real, self.state.ids[row, :width], self.engine.pad_id)
        self.done.behaviour_BT[sample] = torch.where(real, self.state.logprobs[row, :width], 0.0)
        self.done.lengths_B[sample] = length
        self.done.truncated_B[sample] = ~self.state.ended[row]
        for ended_row in ended:
            self.owner[ended_row] = None
            if self.shares:
                place = self.prompt[ended_row]
                self.users[place] -= 1
                if not self.users[place]:
                    self.unused.append(place)


def prompt_groups(prompt_ids: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The tokens of the prompt and the samples of each group."""
    return [(len(group.prompt), len(group.samples)) for group in _groups(prompt_ids, len(prompt_ids))]


def _groups(prompt_ids: Sequence[Sequence[int]], largest: int) -> list[Group]:
    """Groups of consecutive equal prompts, at most `largest` samples each."""
    groups: list[Group] = []
    for i, ids in enumerate(prompt_ids):
        if groups and groups[-1].prompt == tuple(ids) and len(groups[-1].samples) < largest:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].samples, i))
        else:
            groups.append(Group(tuple(ids), (i,)))
    return groups
