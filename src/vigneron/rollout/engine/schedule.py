"""Assignment of samples to rows: they begin in free rows, leave when they end, and rows are compacted when no other
sample can begin. A group need not begin at once: its later samples share the prompt's keys and values with one that
still runs. `conversation_schedule` lets samples go on after replies."""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.core.draws import Sampling, draw_keys
from vigneron.rollout.engine.decode_state import DecodeState, choose
from vigneron.rollout.engine.flags import Flags
from vigneron.rollout.engine.key_value_cache import Room, pages_for
from vigneron.rollout.engine.pages import Pages
from vigneron.rollout.engine.prompt_groups import Group, groups_of
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.stop_strings import StopStrings
from vigneron.timing import phase

# Decode steps between checks of which rows have ended.
CHECK_EVERY = {"cuda": 8, "mps": 8, "cpu": 1}
# Steps that a GPU has to do while the host waits for the result of an earlier one.
AHEAD = 2


Part = tuple[Group, list[int]]
"""Samples of a group that begin together, and their rows."""


class Decoder(Protocol):
    """The part of the engine that a schedule uses."""

    device: torch.device
    state: DecodeState
    ends: Tensor
    pad_id: int
    graphed: bool
    reads_chunks: bool | None

    def rows_for(self, count: int) -> int: ...
    def position_offset(self, prompt: int) -> int: ...
    def prefill(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Tensor: ...
    def read(
        self, rows: Sequence[int], lengths: Sequence[int], prompts: Sequence[int], written: Sequence[int]
    ) -> None: ...
    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None: ...
    def logits(self, hidden_NH: Tensor) -> Tensor: ...
    def decode(self, count: int, sampling: Sampling | None) -> None: ...
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


class Schedule:
    """The processing of one request."""

    def __init__(
        self, engine: Decoder, request: Request, room: Room, done: Completions, stops: StopStrings | None = None
    ) -> None:
        self.engine, self.request, self.done, self.stops = engine, request, done, stops
        # A stack with the longest prompt on top: prompts of similar length are prefilled together.
        self.waiting = sorted(groups_of(request.prompt_ids), key=_prompt_length)
        self.group_of = {sample: group for group in self.waiting for sample in group.samples}
        self.capacity = engine.rows_for(room.rows)
        self.size = self.capacity  # the first rows are decoded; behind them samples wait for replies
        self.state, self.device = engine.state, engine.device
        self.names = to_device(list(request.sample_ids), self.device)
        self.keys = draw_keys(request.seed, request.step, self.names, request.turn)
        self.owner: list[int | None] = [None] * self.size  # the sample in each row
        self.left = [0] * self.size  # tokens left for the sample in each row
        self.can_end = len(engine.ends) > 0 or stops is not None
        self.spare = room.spare
        self.pages: Pages | None = None
        if room.pages:
            longest = pages_for(request.width)
            every = sum(pages_for(len(group.prompt)) + longest * len(group.samples) for group in self.waiting)
            whole = every <= room.pages or request.replies is not None or not self.can_end
            self.pages = Pages(room.pages, request.width, whole=whole)
        self.stopped: set[int | None] = set()  # samples that a stop string has ended
        self.flags = Flags(self.device)  # whether a row runs after each of the last steps
        self.awaiting: dict[int, int] = {}  # samples that wait for a reply; they keep their rows
        self.begin = [0] * len(request.prompt_ids)  # the tokens of each sample before its turn

    def run(self) -> Completions:
        check_every = CHECK_EVERY[self.device.type] if self.can_end else self.request.max_new_tokens
        self.state.vacate(slice(None), self.spare)
        self._admit(list(range(self.size)))
        while any(owner is not None for owner in self.owner):
            with phase("decode"):
                most = min(check_every, max(self.left))
                self._grow(most)
                steps = self._decode(most)
                self._meanwhile(steps)
            if self.pages is not None:
                self.pages.note(steps * sum(left > 0 for left in self.left))
            self.left = [max(0, left - steps) for left in self.left]
            if self.stops is not None:
                self._end_at_stop_strings(self.stops, steps + 1)  # a new row's first token is one more
            self._update_rows()
        return self.done

    def _grow(self, steps: int) -> None:
        """Give samples the pages for so many decode steps. Where there are too few, those that began last are
        preempted: they begin again later, with the same draws."""
        if self.pages is None or self.pages.whole:
            return
        row_of = {owner: row for row, owner in enumerate(self.owner) if owner is not None}
        written = {sample: self.request.max_new_tokens - self.left[row] for sample, row in row_of.items()}
        running = [sample for sample in self.pages.held if self.left[row_of[sample]]]  # the last one began last
        missing = {sample: self.pages.missing(sample, written[sample] - 1 + steps) for sample in running}
        dropped: list[int] = []
        while sum(missing.values()) > len(self.pages.free):
            sample, _ = missing.popitem()
            self.pages.end([sample])
            self.pages.note(1 - written[sample])  # the first token is not noted
            dropped.append(sample)
        if dropped:
            self._preempt(sorted(dropped), row_of)
        new = [(row_of[sample], *at) for sample, count in missing.items() for at in self.pages.grow(sample, count)]
        if new:
            row, column, page = to_device(list(zip(*new, strict=True)), self.device).unbind()
            self.state.pages[row, column] = page

    def _preempt(self, samples: list[int], row_of: dict[int, int]) -> None:
        """Let samples wait for rows once more, beside others of their prompt."""
        for sample in samples:
            group = self.group_of[sample]
            place = next((at for at, other in enumerate(self.waiting) if other.number == group.number), None)
            if place is None:
                insort(self.waiting, replace(group, samples=(sample,)), key=_prompt_length)
            else:
                self.waiting[place] = replace(group, samples=(*self.waiting[place].samples, sample))
        rows = [row_of[sample] for sample in samples]
        for row in rows:
            self.owner[row], self.left[row] = None, 0
        self.state.vacate(to_device(rows, self.device), self.spare)

    def _decode(self, most: int) -> int:
        """Decode steps, not many more than until every row has ended; returns their number. While replies are awaited
        there is other work to do in that time."""
        watched = self.can_end and most > AHEAD and not self.awaiting
        for steps in range(1, most + 1):
            self.engine.decode(self.size, self.request.sampling)
            if watched:
                self.flags.note(steps, self.state.running[: self.size].any())
                if steps > AHEAD and not self.flags.read(steps - AHEAD):
                    return steps
        return most

    def _meanwhile(self, steps: int) -> None:
        """What the host does while a GPU works on so many decode steps."""

    def _revive(self, running: list[bool]) -> list[int]:
        """Let samples go on whose turns have ended; returns their rows."""
        return []

    def _end_at_stop_strings(self, stops: StopStrings, new: int) -> None:
        """End rows whose last `new` tokens complete a stop string; tokens that were sampled behind it are dropped."""
        written_R = self.state.written[: self.size]
        column_RN = written_R[:, None] - 1 - torch.arange(new, device=self.device)
        token_RN = self.state.ids[: self.size].gather(1, column_RN.clamp(min=0))
        can_end = (stops.can_end(token_RN) & (column_RN >= 0)).any(1).tolist()
        rows = [row for row, owner in enumerate(self.owner[: self.size]) if can_end[row] and self._is_open(owner)]
        if not rows:
            return
        at = to_device(rows, self.device)
        begins = [self.begin[self._sample(row)] for row in rows]
        texts = zip(self.state.ids[at].tolist(), written_R[at].tolist(), begins, strict=True)
        ends = [stops.end(ids[begin:count], max(0, count - begin - new)) for ids, count, begin in texts]
        ended = [(row, begin + end) for row, begin, end in zip(rows, begins, ends, strict=True) if end is not None]
        if ended:
            at, end = to_device(list(zip(*ended, strict=True)), self.device).unbind()
            self.state.written[at], self.state.ended[at], self.state.running[at] = end, True, False
            self.stopped |= {self.owner[row] for row, _ in ended}

    def _is_open(self, owner: int | None) -> bool:
        """Whether a stop string can still end this sample's turn."""
        return owner is not None and owner not in self.stopped and owner not in self.awaiting

    def _sample(self, row: int) -> int:
        owner = self.owner[row]
        assert owner is not None
        return owner

    def _update_rows(self) -> None:
        """Collect samples that have ended, and let those go on that were answered; refill rows or compact."""
        running = self.state.running[: self.size].tolist() + [False] * (self.capacity - self.size)
        self.left = [left if runs else 0 for left, runs in zip(self.left, running, strict=True)]
        for row in self._revive(running):
            running[row] = True
        ended = [row for row, owner in enumerate(self.owner) if owner is not None and not self._stays(row, running)]
        free = [row for row in range(self.capacity) if not self._stays(row, running)]
        if self.pages is not None and (self.waiting or not self.pages.whole):  # others need their pages
            self._collect_ended(ended)
            ended = []
        live = sum(running)
        fits = bool(self.waiting and free) and self._room_for(self.waiting[-1], len(free), self._cached()) > 0
        smaller = self._size_for(live) < self.size
        if not (fits or live == 0 or smaller or any(running[self.size :])):
            return
        self._collect_ended(ended)
        if fits:
            before = set(self.owner)
            self._admit(free)
            started = set(self.owner) - before
            running = [runs or owner in started for runs, owner in zip(running, self.owner, strict=True)]
        if not fits or any(running[self.size :]):
            self._arrange(running)

    def _stays(self, row: int, running: list[bool]) -> bool:
        return running[row] or self.owner[row] in self.awaiting

    def _arrange(self, running: list[bool]) -> None:
        """Bring the rows that are decoded to the front, and behind them those that wait for a reply."""
        live = sum(running)
        size = self._size_for(live)
        if not live or (size == self.size and not any(running[size:])):
            return
        waits = [owner in self.awaiting for owner in self.owner]
        order = [row for row, runs in enumerate(running) if runs] + [row for row, wait in enumerate(waits) if wait]
        moved = [(source, target) for target, source in enumerate(order) if source != target]
        self.engine.move([source for source, _ in moved], [target for _, target in moved])
        spare = self.capacity - len(order)
        self.owner = [*(self.owner[row] for row in order), *[None] * spare]
        self.left = [*(self.left[row] for row in order), *[0] * spare]
        self.state.running[live:] = False
        self.state.vacate(slice(len(order), None), self.spare)
        self.size = size

    # ------------------------------------------------------------------------------------------------ rows and groups

    def _size_for(self, live: int) -> int:
        """The number of rows for `live` samples. With CUDA graphs it is halved repeatedly, so that few sizes occur."""
        if not self.engine.graphed:
            return live if live <= 0.8 * self.size or live > self.size else self.size
        size = self.size if live <= self.size else self.capacity
        while (half := self.engine.rows_for(size // 2)) >= live and half < size:
            size = half
        return size

    def _cached(self) -> dict[int, int]:
        """For each group with samples in rows, one of these rows: it has the prompt in its cache."""
        return {self.group_of[owner].number: row for row, owner in enumerate(self.owner) if owner is not None}

    def _room_for(self, group: Group, rows: int, cached: Mapping[int, int]) -> int:
        """How many samples of a group can begin in so many free rows."""
        most = min(len(group.samples), rows)
        if self.pages is None or not most:
            return most
        return min(most, self.pages.room_for(len(group.prompt), shared=group.number in cached))

    def _admit(self, free: list[int]) -> None:
        """Start as many samples as fit. Only prompts that no row has in its cache are prefilled."""
        cached = self._cached()
        new: list[Part] = []
        old: list[Part] = []
        while self.waiting and (count := self._room_for(self.waiting[-1], len(free), cached)):
            group = self.waiting.pop()
            if count < len(group.samples):
                self.waiting.append(replace(group, samples=group.samples[count:]))
            part = replace(group, samples=group.samples[:count]), free[:count]
            free = free[count:]
            row = cached.get(group.number)
            if self.pages is not None:
                self.pages.begin(part[0], None if row is None else self._sample(row))
            if row is not None:
                old.append(part)
                continue
            if new and not self._fits_beside(group, [group for group, _ in new]):
                self._start(new)
                new = []
            new.append(part)
        if new:
            self._start(new)
        if old:
            self._start(old, [cached[group.number] for group, _ in old])

    def _fits_beside(self, group: Group, others: list[Group]) -> bool:
        """Whether its prompt is more than half as long as the longest, and the padded batch within the token limit."""
        longest = len(others[0].prompt)
        return 2 * len(group.prompt) > longest and longest * (len(others) + 1) <= self.request.microbatch_tokens

    def _start(self, parts: list[Part], cached: Sequence[int] = ()) -> None:
        """Begin samples in their rows, and sample each first token. Their prompts are in the caches of the rows
        `cached`; without these they are prefilled."""
        request, device = self.request, self.device
        with phase("prefill"):
            if cached:
                peers = to_device([self._sample(row) for row in cached], device)
                hidden_PH = self.done.prompt_hidden_BH[peers]
            else:
                cached = [rows[0] for _, rows in parts]
                hidden_PH = self.engine.prefill([group.prompt for group, _ in parts], self._places(parts))
            if self.pages is None:
                copies = [(source, row) for source, (_, rows) in zip(cached, parts, strict=True) for row in rows]
                copies = [(source, row) for source, row in copies if source != row]
                self.engine.share_prompt(
                    [source for source, _ in copies],
                    [target for _, target in copies],
                    max(len(group.prompt) for group, _ in parts),
                )
            logits_PV = self.engine.logits(hidden_PH)
            samples = [sample for group, _ in parts for sample in group.samples]
            rows = [row for _, rows in parts for row in rows]
            lengths = [len(group.prompt) for group, _ in parts for _ in group.samples]
            of_prompt = [p for p, (group, _) in enumerate(parts) for _ in group.samples]
            offsets = [self.engine.position_offset(length) for length in lengths]
            at, sample, length, prompt, offset = to_device(
                [rows, samples, lengths, of_prompt, offsets], device
            ).unbind()
            key = self.keys[sample]
            limit = torch.full_like(at, request.max_new_tokens)
            self.state.begin(at, length=length, offset=offset, key=key, limit=limit, pages=self._pages_of(samples))
            token, logprob = choose(logits_PV[prompt], key, torch.zeros_like(key), request.sampling)
            self.state.write(at, token, logprob, self.engine.ends)
            self.done.prompt_hidden_BH[sample] = hidden_PH[prompt].to(self.done.prompt_hidden_BH.dtype)
        for row, owner in zip(rows, samples, strict=True):
            self.owner[row], self.left[row] = owner, request.max_new_tokens - 1

    def _places(self, parts: list[Part]) -> list[list[int]]:
        """Where the prompts of groups are written: their pages, or the first row of each."""
        if self.pages is None:
            return [rows[:1] for _, rows in parts]
        return [self.pages.held[group.samples[0]].prompt.pages for group, _ in parts]

    def _pages_of(self, samples: list[int]) -> Tensor:
        """The pages of samples, as rows have them."""
        width = self.state.pages.shape[1]
        if self.pages is None:
            return self.state.pages.new_zeros(len(samples), width)
        return to_device([self.pages.held[sample].row(width, self.spare) for sample in samples], self.device)

    def _collect_ended(self, ended: list[int]) -> None:
        if not ended:
            return
        owners = [self.owner[row] for row in ended]
        row, sample = to_device([ended, owners], self.device).unbind()
        width = self.request.width
        length = self.state.written[row]
        real = torch.arange(width, device=self.device) < length[:, None]
        self.done.ids_BT[sample] = torch.where(real, self.state.ids[row, :width], self.engine.pad_id)
        self.done.behaviour_BT[sample] = torch.where(real, self.state.logprobs[row, :width], 0.0)
        self.done.lengths_B[sample] = length
        self.done.truncated_B[sample] = ~self.state.ended[row]
        self.state.vacate(row, self.spare)
        for ended_row in ended:
            self.owner[ended_row] = None
        if self.pages is not None:
            self.pages.note(0, len(ended))
            self.pages.end([owner for owner in owners if owner is not None])


def _prompt_length(group: Group) -> int:
    return len(group.prompt)
