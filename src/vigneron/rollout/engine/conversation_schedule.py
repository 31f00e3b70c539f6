"""A schedule of conversations: a sample whose turn has ended waits for a reply, reads it and goes on.

Meanwhile it keeps its cache, in a row behind those that are decoded.
"""

import torch

from vigneron.batch import to_device
from vigneron.core.draws import draw_keys
from vigneron.rollout.engine.key_value_cache import Room
from vigneron.rollout.engine.reply_chunks import reply_chunks
from vigneron.rollout.engine.request import Completions, Replies, Request, Turn
from vigneron.rollout.engine.schedule import Decoder, Schedule
from vigneron.rollout.engine.stop_strings import StopStrings
from vigneron.timing import phase


class ConversationSchedule(Schedule):
    """The processing of a request with `replies`."""

    def __init__(
        self,
        engine: Decoder,
        request: Request,
        replies: Replies,
        room: Room,
        done: Completions,
        stops: StopStrings | None = None,
    ) -> None:
        super().__init__(engine, request, room, done, stops)
        self.replies = replies
        self.clock = 0  # decode steps; `awaiting` has the one since which a sample waits
        self.unsent: list[Turn] = []  # turns that the environment has not been given yet
        self.answers: dict[int, tuple[int, ...]] = {}  # replies that are known before they are due
        self.finished: set[int] = set()  # samples whose conversation is over
        self.turn = [0] * len(request.prompt_ids)  # the number of each sample's turn

    def _meanwhile(self, steps: int) -> None:
        """Ask for replies, and take those that are due after these steps."""
        self.clock += steps
        self._ask()
        due = [s for s, since in self.awaiting.items() if self.clock - since >= self.replies.patience]
        self.answers |= zip(due, self.replies.take(due), strict=True)

    def _ask(self) -> None:
        self.replies.ask(self.unsent)
        self.unsent = []

    def _revive(self, running: list[bool]) -> list[int]:
        """Note the turns that have ended, and let rows go on whose reply is due."""
        closed = self.finished | self.awaiting.keys()
        new = [row for row, owner in enumerate(self.owner) if not (owner is None or running[row] or owner in closed)]
        if new:
            turns = self._turns(new)
            self.unsent += turns
            self.awaiting |= dict.fromkeys((turn.sample for turn in turns), self.clock)
        nothing_else = not any(running)
        due = [s for s, since in self.awaiting.items() if nothing_else or self.clock - since >= self.replies.patience]
        if not due:
            return []
        if unknown := [sample for sample in due if sample not in self.answers]:
            with phase("replies"):
                self._ask()
                self.answers |= zip(unknown, self.replies.take(unknown), strict=True)
        answers = {sample: self.answers.pop(sample) for sample in due}
        for sample, reply in answers.items():
            del self.awaiting[sample]
            if not reply:
                self.finished.add(sample)
        rows = [row for row, owner in enumerate(self.owner) if owner is not None and answers.get(owner)]
        if rows:
            self._go_on(rows, [answers[self._sample(row)] for row in rows])
            self._read_chunks(rows, [len(answers[self._sample(row)]) for row in rows], sum(running) + len(rows))
        return rows

    def _turns(self, rows: list[int]) -> list[Turn]:
        """The turns that have ended in these rows."""
        samples = [self._sample(row) for row in rows]
        begins = [self.begin[sample] for sample in samples]
        at, begin = to_device([rows, begins], self.device).unbind()
        counts, ended = self.state.written[at].tolist(), self.state.ended[at].tolist()
        longest = max(count - begin for count, begin in zip(counts, begins, strict=True))
        column_NT = begin[:, None] + torch.arange(longest, device=self.device)
        table = self.state.ids[at].gather(1, column_NT.clamp(max=self.state.ids.shape[1] - 1)).tolist()
        turns = []
        for sample, start, count, ids, is_ended in zip(samples, begins, counts, table, ended, strict=True):
            turns.append(Turn(sample, start, tuple(ids[: count - start]), is_ended))
            self.begin[sample] = count
        return turns

    def _go_on(self, rows: list[int], replies: list[tuple[int, ...]]) -> None:
        """Let rows read their replies and begin another turn."""
        samples, lengths = [self._sample(row) for row in rows], [len(reply) for reply in replies]
        limits = []
        for row, owner, count in zip(rows, samples, lengths, strict=True):
            self.turn[owner] += 1
            self.begin[owner] += count
            limits.append(min(self.begin[owner] + self.request.max_new_tokens, self.request.room(owner)))
            self.left[row] = limits[-1] - self.begin[owner] + count
        self.stopped -= set(samples)
        turns = [self.turn[sample] for sample in samples]
        at, sample, length, limit, turn = to_device([rows, samples, lengths, limits, turns], self.device).unbind()
        reply = to_device([[*ids, *[0] * (max(lengths) - len(ids))] for ids in replies], self.device)
        key = draw_keys(self.request.seed, self.request.step, self.names[sample], turn)
        self.state.go_on(at, reply=reply, length=length, limit=limit, key=key)

    def _read_chunks(self, rows: list[int], lengths: list[int], decoded: int) -> None:
        """Read long replies at once; the others are read one token a step."""
        if not self.engine.reads_chunks:
            return
        for chunk in reply_chunks(lengths, decoded, self.request.microbatch_tokens):
            samples = [self._sample(rows[i]) for i in chunk]
            prompts = [len(self.request.prompt_ids[sample]) for sample in samples]
            counts = [lengths[i] for i in chunk]
            written = [self.begin[sample] - count for sample, count in zip(samples, counts, strict=True)]
            with phase("prefill"):
                self.engine.read([rows[i] for i in chunk], counts, prompts, written)
            for i in chunk:
                self.left[rows[i]] -= lengths[i]
