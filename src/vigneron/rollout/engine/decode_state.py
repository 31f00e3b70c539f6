"""The state of the rows being sampled, in tensors with fixed addresses, and the choice of the next token."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.draws import Sampling, chosen_logprobs, draw, sampled_logprobs, uniform_at
from vigneron.policy.compiling import can_run_kernels, compiled_on_gpu


@dataclass
class DecodeState:
    """One entry per row. `ids` holds `written` tokens; the `last` of them goes into the cache next, at `slot`. Its
    position is `slot` + `offset`, which marks long sequences (see `policy.longrope`). The prompt has `start` tokens.
    `pages`, in a paged cache, are those of the prompt and then of the completion. The first `given` tokens of `ids` are
    not drawn: those after the `written` ones are a reply that the row reads next."""

    last: Int[Tensor, " R"]
    slot: Int[Tensor, " R"]
    offset: Int[Tensor, " R"]
    written: Int[Tensor, " R"]
    given: Int[Tensor, " R"]
    limit: Int[Tensor, " R"]
    key: Int[Tensor, " R"]
    start: Int[Tensor, " R"]
    running: Bool[Tensor, " R"]
    ended: Bool[Tensor, " R"]
    pages: Int[Tensor, "R M"]
    ids: Int[Tensor, "R T"]
    logprobs: Float[Tensor, "R T"]

    @classmethod
    def empty(
        cls, rows: int, tokens: int, device: torch.device, dtype: torch.dtype, *, pages: int = 0
    ) -> "DecodeState":
        """A blank state. One column more than `tokens` takes the writes of rows that have ended."""

        def blank(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        last, slot, offset, written, given, limit, key, start = (blank(torch.long) for _ in range(8))
        running, ended, table = blank(torch.bool), blank(torch.bool), blank(torch.long, pages)
        ids, logprobs = blank(torch.long, tokens + 1), blank(dtype, tokens + 1)
        return cls(last, slot, offset, written, given, limit, key, start, running, ended, table, ids, logprobs)

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def first(self, count: int) -> "DecodeState":
        """A view of the first rows."""
        return DecodeState(*(tensor[:count] for tensor in self.tensors()))

    def move(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> None:
        """Move the rows `source` to `target`."""
        for tensor in self.tensors():
            tensor[target] = tensor[source]

    def vacate(self, at: slice | Int[Tensor, " N"], spare: int) -> None:
        """Rows `at` have no sample: what is computed for them until they get one goes into the spare page."""
        self.running[at] = False
        self.slot[at] = self.start[at] = 0
        self.pages[at] = spare

    def begin(
        self, at: Int[Tensor, " N"], *, length: Tensor, offset: Tensor, key: Tensor, limit: Tensor, pages: Tensor
    ) -> None:
        """Start new samples in rows `at`, before their first token, behind prompts of `length` tokens."""
        self.slot[at], self.offset[at], self.key[at], self.limit[at] = length - 1, offset, key, limit
        self.start[at], self.pages[at] = length, pages
        self.written[at] = self.given[at] = 0
        self.running[at] = True
        self.ended[at] = False

    def go_on(
        self, at: Int[Tensor, " N"], *, reply: Int[Tensor, "N T"], length: Tensor, limit: Tensor, key: Tensor
    ) -> None:
        """Let rows `at`, whose turn has ended, read a reply of `length` tokens and begin another turn. What was drawn
        behind a stop string is dropped: the turn's last token is the next to go into the cache."""
        column_NT = self.written[at][:, None] + torch.arange(reply.shape[1], device=reply.device)
        column_NT = column_NT.clamp(max=self.ids.shape[1] - 1)  # padding behind the row goes into the spare column
        ids_NT = self.ids[at]
        self.last[at] = ids_NT.gather(1, self.written[at][:, None] - 1)[:, 0]
        self.slot[at] = self.start[at] + self.written[at] - 1
        kept_NT = ids_NT.gather(1, column_NT)
        is_reply_NT = torch.arange(reply.shape[1], device=reply.device) < length[:, None]
        self.ids[at] = ids_NT.scatter(1, column_NT, torch.where(is_reply_NT, reply, kept_NT))
        logprobs_NT = self.logprobs[at]
        kept_NT = logprobs_NT.gather(1, column_NT)
        self.logprobs[at] = logprobs_NT.scatter(1, column_NT, torch.where(is_reply_NT, 0.0, kept_NT))
        self.given[at] = self.written[at] + length
        self.limit[at], self.key[at] = limit, key
        self.running[at] = True
        self.ended[at] = False

    def unread(self, at: Int[Tensor, " N"], first: int, width: int) -> Int[Tensor, "N S"]:
        """The tokens of rows `at` that go into the cache next: `width` of them after the first `first`."""
        column_NS = self.written[at][:, None] - 1 + first + torch.arange(width, device=at.device)
        return self.ids[at].gather(1, column_NS.clamp(max=self.ids.shape[1] - 1))

    def skip(self, at: Int[Tensor, " N"], length: Tensor) -> None:
        """Go on behind `length` given tokens that rows `at` have read in another way."""
        self.slot[at] += length
        self.written[at] += length
        self.last[at] = self.ids[at].gather(1, self.written[at][:, None] - 1)[:, 0]

    def write(self, at: slice | Tensor, token_N: Tensor, logprob_N: Tensor, ends_E: Tensor) -> None:
        """Append a token to rows `at`, or read the next one that is given; rows that have ended do not change."""
        running_N, written_N = self.running[at], self.written[at]
        scratch = self.ids.shape[1] - 1
        column_N1 = torch.where(running_N, written_N, scratch)[:, None]
        ids_NT, logprobs_NT = self.ids[at], self.logprobs[at]
        given_N = written_N < self.given[at]
        token_N = torch.where(given_N, ids_NT.gather(1, column_N1)[:, 0], token_N)
        logprob_N = torch.where(given_N, 0.0, logprob_N)
        ids_NT.scatter_(1, column_N1, token_N[:, None])
        logprobs_NT.scatter_(1, column_N1, logprob_N[:, None].to(logprobs_NT.dtype))
        if isinstance(at, Tensor):  # indexing made a copy: write it back
            self.ids[at], self.logprobs[at] = ids_NT, logprobs_NT
        ended_N = (token_N[:, None] == ends_E).any(1) & ~given_N
        written_N = written_N + running_N
        self.last[at] = torch.where(running_N, token_N, self.last[at])
        self.slot[at] = self.slot[at] + running_N
        self.written[at] = written_N
        self.ended[at] = torch.where(running_N, ended_N, self.ended[at])
        self.running[at] = running_N & ~ended_N & (written_N < self.limit[at])


def choose(
    logits_NV: Float[Tensor, "N V"], key_N: Int[Tensor, " N"], written_N: Int[Tensor, " N"], sampling: Sampling | None
) -> tuple[Int[Tensor, " N"], Float[Tensor, " N"]]:
    """The next token of each row and its log-prob; greedy without `sampling`."""
    has_kernel = logits_NV.dtype == torch.float32 and can_run_kernels(logits_NV.device)
    if has_kernel and sampling is not None and not sampling.drops_some(logits_NV.shape[1]):
        from vigneron.rollout.engine.draw_kernel import draw_tokens

        return draw_tokens(logits_NV, key_N, written_N, sampling.temperature)
    return _choose(logits_NV, key_N, written_N, sampling)


@compiled_on_gpu
def _choose(logits_NV: Tensor, key_N: Tensor, written_N: Tensor, sampling: Sampling | None) -> tuple[Tensor, Tensor]:
    logprobs_NV = sampled_logprobs(logits_NV, sampling or Sampling())
    token_N = logits_NV.argmax(-1) if sampling is None else draw(logprobs_NV.exp(), uniform_at(key_N, written_N))
    return token_N, chosen_logprobs(logprobs_NV, token_N)
