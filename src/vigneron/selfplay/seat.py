"""A role in one episode of a game: what it has read and written, as messages and as tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vigneron.data.prompts import Row, prompts_token_ids
from vigneron.environments.reply import Reply
from vigneron.policy.message_forms import Message
from vigneron.policy.reply_tokens import reply_ids
from vigneron.rollout.conversations import Transcript
from vigneron.rollout.reply_draft import Draft


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
    early_reward: float = 0.0
    """What it has earned before its first turn."""

    @property
    def conversation(self) -> list[Message]:
        """The conversation as this role sees it."""
        return [*self.prompt, *self.transcript.messages]

    @property
    def turns(self) -> int:
        """How many it has had."""
        return sum(message["role"] == "assistant" for message in self.transcript.messages)

    def read(self, tokenizer: Any, max_reply_tokens: int) -> None:
        """Take in what is unread: its prompt before the first turn, a reply later, whose longest texts are cut if it
        is too long."""
        if not self.prompt:
            self.prompt = list(self.unread)
            (self.prompt_ids,) = prompts_token_ids(tokenizer, [self.prompt], rows=[{**self.row, "prompt": self.prompt}])
        elif self.unread:
            draft = Draft.of(Reply(self.unread), self.completion_ids[-1], max_reply_tokens)
            ids = self._written(tokenizer, draft)
            while len(ids) > max_reply_tokens and draft.shorten(len(ids), max_reply_tokens):
                ids = self._written(tokenizer, draft)
            if draft.is_cut:
                self.transcript.logs[-1]["shortened"] = True
            if len(ids) > max_reply_tokens:
                self.transcript.cut = "context"
                return
            self.completion_ids += ids
            self.behaviour += [0.0] * len(ids)
            self.transcript.messages += draft.messages()
        self.unread = []

    def _written(self, tokenizer: Any, draft: Draft) -> tuple[int, ...]:
        return reply_ids(tokenizer, self.conversation, draft.messages(), draft.last)

    def write(self, text: str, ids: Sequence[int], logprobs: Sequence[float], truncated: bool) -> None:
        """Take a turn."""
        start = len(self.completion_ids)
        self.completion_ids += tuple(ids)
        self.behaviour += logprobs
        self.truncated = truncated
        self.transcript.spans.append((start, len(self.completion_ids)))
        self.transcript.messages.append({"role": "assistant", "content": text})
        self.transcript.rewards.append(self.early_reward)
        self.early_reward = 0.0
        self.transcript.logs.append({})

    def earn(self, reward: float) -> None:
        """For its last turn; what comes before its first turn counts for that one."""
        if self.transcript.rewards:
            self.transcript.rewards[-1] = self.transcript.earned[-1] + reward
        else:
            self.early_reward += reward
