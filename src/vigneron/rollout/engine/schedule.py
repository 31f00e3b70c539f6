"""Which sample is in which row: admitted by groups, taken out when they end, ranks closed when nobody waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vigneron.batch import to_device
from vigneron.core.draws import Sampling, draw_keys
from vigneron.rollout.engine.decode_state import Rows, choose
from vigneron.rollout.engine.request import Completions, Request
from vigneron.timing import phase

# How often the host looks which rows have ended.
LOOK_EVERY = {"cuda": 8, "mps": 8, "cpu": 1}


@dataclass(frozen=True)
class Group:
    """Samples of one prompt that are admitted together."""

    prompt: tuple[int, ...]
    samples: tuple[int, ...]


class Decoder(Protocol):
    """What a schedule needs of the engine."""

    device: torch.device
    rows: Rows
    ends: Tensor
    pad_id: int
    graphed: bool

    def rows_for(self, count: int) -> int: ...
    def prefill(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor: ...
    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None: ...
    def logits(self, hidden_NH: Tensor) -> Tensor: ...
    def decode(self, count: int, sampling: Sampling | None) -> None: ...
    def compact(self, kept: Sequence[int]) -> None: ...


class Schedule:
    """One request on its way through the engine's rows."""

    def __init__(self, engine: Decoder, request: Request, rows: int, done: Completions) -> None:
        self.engine, self.request, self.done = engine, request, done
        # The next one last, longest first: prompts of like length go through the model together.
        self.waiting = sorted(_groups(request.prompt_ids, rows), key=lambda group: len(group.prompt))
        self.size = engine.rows_for(rows)
        self.rows, self.device = engine.rows, engine.device
        names = to_device(list(request.sample_ids), self.device)
        self.keys = draw_keys(request.seed, request.step, names)
        self.owner: list[int | None] = [None] * self.size  # the sample in each row
        self.left = [0] * self.size  # tokens it may still get

    def run(self) -> Completions:
        look_every = LOOK_EVERY[self.device.type] if len(self.engine.ends) else self.request.max_new_tokens
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
        self.left = [left if runs else 0 for left, runs in zip(self.left, running, strict=True)]
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
        if not self.engine.graphed:
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
            logits_PV = self.engine.logits(hidden_PH)
            samples = [sample for group, _ in groups for sample in group.samples]
            rows = [row for _, rows in groups for row in rows]
            lengths = [len(group.prompt) for group, _ in groups for _ in group.samples]
            of_prompt = [p for p, (group, _) in enumerate(groups) for _ in group.samples]
            at, sample, length, prompt = to_device([rows, samples, lengths, of_prompt], device).unbind()
            key = self.keys[sample]
            self.rows.start(at, slot=length, key=key, limit=torch.full_like(at, request.max_new_tokens))
            token, logprob = choose(logits_PV[prompt], key, torch.zeros_like(key), request.sampling)
            self.rows.write(at, token, logprob, self.engine.ends)
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
        self.done.ids_BT[sample] = torch.where(real, self.rows.ids[row, :width], self.engine.pad_id)
        self.done.behaviour_BT[sample] = torch.where(real, self.rows.logprobs[row, :width], 0.0)
        self.done.lengths_B[sample] = length
        self.done.truncated_B[sample] = ~self.rows.ended[row]
        for ended_row in ended:
            self.owner[ended_row] = None


def _groups(prompt_ids: Sequence[Sequence[int]], largest: int) -> list[Group]:
    """Neighbours with the same prompt, at most `largest` together."""
    groups: list[Group] = []
    for i, ids in enumerate(prompt_ids):
        if groups and groups[-1].prompt == tuple(ids) and len(groups[-1].samples) < largest:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].samples, i))
        else:
            groups.append(Group(tuple(ids), (i,)))
    return groups
