"""A role in one episode of a game: what it has read and written, as messages and as tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vigneron.data.prompts import Row, prompts_token_ids
from vigneron.environments.reply import Reply
from vigneron.errors import UserError
from vigneron.policy.message_forms import Message
from vigneron.rollout.conversations import Transcript, add_log
from vigneron.rollout.reply_draft import Draft, drafts_ids


@dataclass
class Seat:
    episode: int
    role: str
    row: Row
    unread: list[Message] = field(default_factory=list)
    """What it reads when its turn comes."""
    prompt: list[Message] = field(default_factory=list)
    transcript: Transcript = field(default_factory=Transcript)
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    behaviour: list[float] = field(default_factory=list)
    truncated: bool = False
    """Whether one of its turns was cut."""
    early_reward: float = 0.0
    early_log: dict[str, Any] = field(default_factory=dict)
    """What it has earned before its first turn."""

    @property
    def conversation(self) -> list[Message]:
        """The conversation as this role sees it."""
        return [*self.prompt, *self.transcript.messages]

    @property
    def turns(self) -> int:
        """How many it has had."""
        return sum(message["role"] == "assistant" for message in self.transcript.messages)

    def begin(self) -> None:
        """Take what is unread as its prompt."""
        self.prompt, self.unread = list(self.unread), []

    def take_reply(self, draft: Draft, ids: tuple[int, ...], max_reply_tokens: int) -> None:
        """Take in what was unread, as `draft` has it, unless it is too long."""
        if draft.is_cut:
            self.transcript.logs[-1]["shortened"] = True
        if len(ids) > max_reply_tokens:
            self.transcript.cut = "context"
            return
        self.completion_ids += ids
        self.behaviour += [0.0] * len(ids)
        self.transcript.messages += draft.messages()
        self.unread = []

    def write(self, text: str, ids: Sequence[int], logprobs: Sequence[float], truncated: bool) -> None:
        """Take a turn."""
        start = len(self.completion_ids)
        self.completion_ids += tuple(ids)
        self.behaviour += logprobs
        self.truncated |= truncated
        self.transcript.spans.append((start, len(self.completion_ids)))
        self.transcript.messages.append({"role": "assistant", "content": text})
        self.transcript.rewards.append(self.early_reward)
        self.early_reward = 0.0
        self.transcript.logs.append(self.early_log)
        self.early_log = {}

    def note(self, log: Mapping[str, Any]) -> None:
        """What the game logs, beside its last turn or, before its first, beside that one."""
        add_log(self.transcript.logs[-1] if self.transcript.logs else self.early_log, log)

    def earn(self, reward: float) -> None:
        """For its last turn; what comes before its first turn counts for that one."""
        if self.transcript.rewards:
            self.transcript.rewards[-1] = self.transcript.earned[-1] + reward
        else:
            self.early_reward += reward


def read_unread(tokenizer: Any, seats: Sequence[Seat], max_reply_tokens: int) -> None:
    """Each seat takes in what is unread: its prompt before the first turn, a reply later, whose longest texts are cut
    if it is too long. The texts of all are tokenized together."""
    opening, others = [seat for seat in seats if not seat.prompt], [seat for seat in seats if seat.prompt]
    for seat in opening:
        seat.begin()
    if opening:
        _write_openings(tokenizer, opening)
    replies = {
        at: Draft.of(Reply(seat.unread), seat.completion_ids[-1], max_reply_tokens)
        for at, seat in enumerate(others)
        if seat.unread
    }
    ids, unwritable = drafts_ids(tokenizer, replies, lambda at: others[at].conversation, max_reply_tokens)
    for at, of_reply in ids.items():
        others[at].take_reply(replies[at], of_reply, max_reply_tokens)
    for at, why in unwritable.items():  # the game's fault: it takes its episode out
        others[at].transcript.error = why


def _write_openings(tokenizer: Any, seats: Sequence[Seat]) -> None:
    """The tokens of each prompt. One that cannot be written takes its episode out."""
    rows = [{**seat.row, "prompt": seat.prompt} for seat in seats]
    try:
        written = prompts_token_ids(tokenizer, [seat.prompt for seat in seats], rows=rows)
    except UserError as error:
        if len(seats) > 1:  # which of them it is
            for seat in seats:
                _write_openings(tokenizer, [seat])
            return
        (seat,) = seats
        roles = ", ".join(sorted({repr(message["role"]) for message in seat.prompt}))
        seat.transcript.error = (
            f"opened {seat.role!r} with messages that cannot be written, with the roles {roles}: {error}"
        )
        return
    for seat, ids in zip(seats, written, strict=True):
        seat.prompt_ids = ids
