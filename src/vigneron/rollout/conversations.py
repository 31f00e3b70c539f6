"""Conversations of the policy with environments: messages, tokens and rewards.

The policy's turns are sampled by the engine, which reads the replies into the cache that it has. Nothing is tokenized
twice: a turn stays as it was sampled, and a reply is written by the chat template between two turns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import torch

from vigneron.core.draws import draw_keys
from vigneron.data.prompts import Row, texts_of
from vigneron.distributed import ranks
from vigneron.environments.build import Environments
from vigneron.environments.calls import Call, CallFailed, Calls, raised
from vigneron.environments.reply import BadReply, Environment, checked_reply
from vigneron.errors import UserError
from vigneron.policy.chat import stop_at
from vigneron.policy.message_forms import Message, copied, is_message
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions, Turn
from vigneron.rollout.engine.sample import rank_share, sample, sample_on_all_ranks, sampled_share
from vigneron.rollout.reply_draft import Draft, drafts_ids
from vigneron.turn_sums import TURN_REWARD, TurnSums

ERROR = "environment_error"
"""The extra with what went wrong in a sample's environment: it has no reward then."""
TURN_REWARDS = "turn_rewards"
"""The extra with the reward of each turn, for methods that take rewards where they fall."""
REWARD = "environment_reward"
"""The extra with their sum, None if the environment failed. Reward functions get it, and `EARNED`."""
EARNED = "environment_rewards"
"""The extra with what the environment gave for each turn, whatever the reward is."""
CONVERSATION = "conversation"
"""The extra with all messages after the prompt, for people to read."""
LARGEST = 1e100
"""Of a number that is logged."""
SEED_TURN = 2**20 - 1
"""The seed of an environment is the draw of a turn that no conversation has."""
TURNS_AT_ONCE = 64
"""Turns that are read before their calls are made, and replies that are waited for before they are written: calls of
the first turns are under way while others are read, and those of the last while replies are written."""
LARGEST_SEED = 2**31 - 1
"""What numpy's and Python's generators take."""


@dataclass
class Transcript:
    """A sample's conversation after its prompt."""

    messages: list[Message] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """The tokens of each turn of the policy, from the end of the prompt."""
    rewards: list[float | None] = field(default_factory=list)
    """Of each turn; None where the environment gave none, which counts as 0."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    cut: Literal["length", "context", "turns"] | None = None
    """Why it ended before the environment ended it: a turn that was cut, no more room, or no more turns."""
    error: str | None = None

    @property
    def earned(self) -> tuple[float, ...]:
        """By each turn."""
        return tuple(reward or 0.0 for reward in self.rewards)


class Conversations:
    """Answers the turns of a request (`Replies`): sample i talks with the environment of row i."""

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        rows: Sequence[Row],
        rooms: Sequence[int],
        seeds: Sequence[int],
        patience: int = 0,
    ) -> None:
        """`rooms` are the tokens that each sample may have behind its prompt."""
        self.patience = patience
        self._environments, self._rows, self._rooms = environments, rows, rooms
        self._tokenizer, self._ends = policy.tokenizer, policy.eos_ids
        added = policy.tokenizer.added_tokens_decoder
        self._special = {token for token in added if added[token].special} | {*policy.tokenizer.all_special_ids}
        self._options = environments.options
        self._calls = Calls(self._options.concurrency, self._options.timeout_s)
        self.transcripts = [Transcript() for _ in rows]
        make = environments.make
        makers = [partial(make, copied(dict(row)), seed) for row, seed in zip(rows, seeds, strict=True)]
        self._instances: list[Environment | None] = [None] * len(rows)
        self._making: dict[int, Call] = {}
        """Those that are not needed yet: first turns are sampled meanwhile."""
        if environments.at_once:
            self._instances = [make_one() for make_one in makers]
        else:
            self._making = dict(enumerate(self._calls.start(makers)))
        self._pending: dict[int, tuple[Turn, Call | None]] = {}
        self._cut_calls: dict[int, Call] = {}

    def _instance(self, sample: int) -> Environment | None:
        """The environment of a sample, None if it has failed."""
        if (making := self._making.pop(sample, None)) is not None:
            try:
                self._instances[sample] = making.result()
            except CallFailed as error:  # user code: it takes its sample out
                self.transcripts[sample].error = f"{error} when it was made"
        return self._instances[sample]

    def ask(self, turns: Sequence[Turn]) -> None:
        for first in range(0, len(turns), TURNS_AT_ONCE):
            self._ask(turns[first : first + TURNS_AT_ONCE])

    def _ask(self, turns: Sequence[Turn]) -> None:
        functions = []
        for turn, (text, raw) in zip(turns, self._texts(turns), strict=True):
            transcript, environment = self.transcripts[turn.sample], self._instance(turn.sample)
            transcript.spans.append((turn.start, turn.start + len(turn.ids)))
            transcript.messages.append({"role": "assistant", "content": text})
            try:
                transcript.messages[-1] = _message(environment, text, raw)
            except Exception as error:  # user code: it takes its sample out
                transcript.error = f"{raised(error)} in `read_turn`"
                environment = self._instances[turn.sample] = None
            if environment is not None:
                messages = self._conversation(turn.sample)
                if not getattr(environment, "keeps_messages", False):
                    messages = copied(messages)  # a user may change them
                functions.append(partial(environment.reply, messages))
        calls = iter(self._calls.start(functions))
        for turn in turns:
            self._pending[turn.sample] = (turn, None if self._instances[turn.sample] is None else next(calls))

    def _texts(self, turns: Sequence[Turn]) -> list[tuple[str, str]]:
        """Of each turn without and with special tokens; its end token is in neither."""
        ids = [self._without_end(turn) for turn in turns]
        raws = texts_of(self._tokenizer, ids, skip_special=False)
        texts = dict(enumerate(raws))
        if differ := [i for i, of_turn in enumerate(ids) if not self._special.isdisjoint(of_turn)]:
            texts |= zip(differ, texts_of(self._tokenizer, [ids[i] for i in differ]), strict=True)
        return [(texts[i], raw) for i, raw in enumerate(raws)]

    def _without_end(self, turn: Turn) -> tuple[int, ...]:
        return turn.ids[:-1] if turn.ids and turn.ids[-1] in self._ends else turn.ids

    def _conversation(self, sample: int) -> list[Message]:
        """All messages so far."""
        return [*self._rows[sample]["prompt"], *self.transcripts[sample].messages]

    def take(self, samples: Sequence[int]) -> list[tuple[int, ...]]:
        ids: dict[int, tuple[int, ...]] = {}
        for first in range(0, len(samples), TURNS_AT_ONCE):
            ids |= self._take(samples[first : first + TURNS_AT_ONCE])
        return [ids.get(sample, ()) for sample in samples]

    def ended(self) -> list[Transcript]:
        """All conversations, once they are over. What scores one that was cut is waited for here, when nothing is left
        to sample."""
        for number, call in self._cut_calls.items():
            self._add_last_reward(self.transcripts[number], call)
        self._cut_calls = {}
        return self.transcripts

    def _take(self, samples: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The replies of the conversations that go on."""
        self._calls.settle([call for _, call in (self._pending[s] for s in samples) if call is not None])
        drafts = {sample: draft for sample in samples if (draft := self._next(sample)) is not None}
        most = self._options.max_reply_tokens
        ids, unwritable = drafts_ids(self._tokenizer, drafts, self._conversation, most, self._environments.tools)
        for number, why in unwritable.items():  # the environment's fault: it takes its sample out
            self.transcripts[number].error = why
        for number, of_reply in ids.items():
            if drafts[number].is_cut:
                self.transcripts[number].logs[-1]["shortened"] = True
            if len(of_reply) > most or self.transcripts[number].spans[-1][1] + len(of_reply) >= self._rooms[number]:
                ids[number] = self._cut(number, "context")
            else:
                self.transcripts[number].messages += drafts[number].messages()
        return ids

    def _cut(self, sample: int, why: Literal["length", "context", "turns"]) -> tuple[()]:
        """End a conversation that its environment has not ended, which may score what is there."""
        self.transcripts[sample].cut = why
        cut = getattr(self._instances[sample], "cut", None)
        if callable(cut):
            self._cut_calls[sample] = self._calls.start([cut])[0]
        return ()

    def _add_last_reward(self, transcript: Transcript, call: Call) -> None:
        try:
            reply = checked_reply(call.result())
        except (CallFailed, BadReply) as error:
            transcript.error = str(error)
            return
        if reply.reward is not None:
            transcript.rewards[-1] = (transcript.rewards[-1] or 0.0) + reply.reward
        add_log(transcript.logs[-1], reply.log)

    def _next(self, sample: int) -> Draft | None:
        """What the sample reads next; None if its conversation is over."""
        turn, call = self._pending.pop(sample)
        transcript = self.transcripts[sample]
        if call is None:
            return None
        try:
            reply = checked_reply(call.result())
        except (CallFailed, BadReply) as error:
            transcript.error = str(error)
            return None
        transcript.rewards.append(reply.reward)
        transcript.logs.append(dict(reply.log))
        if reply.done:
            transcript.cut = None if turn.ended else "length"
        elif not turn.ended:
            self._cut(sample, "length")
        elif len(transcript.spans) == self._options.max_turns:
            self._cut(sample, "turns")
        else:
            return Draft.of(reply, turn.ids[-1], self._options.max_reply_tokens)
        return None


def _message(environment: Environment | None, text: str, raw: str) -> Message:
    """A turn as a message, with tool calls where the environment reads them; `raw` is its text with special tokens."""
    read_turn = getattr(environment, "read_turn", None)
    message: Message = {"role": "assistant", "content": text} if read_turn is None else read_turn(raw, text)
    if not is_message(message) or message["role"] != "assistant":
        raise TypeError(f"an assistant's message is needed, not {message!r:.60}")
    return message


def converse(
    environments: Environments,
    policy: Policy,
    rows: Sequence[Row],
    prompt_ids: Sequence[tuple[int, ...]],
    *,
    together: bool,
    **options: Any,
) -> tuple[Completions, list[Transcript]]:
    """One conversation for each row, from the given prompt. `options` are those of `sample`; with `together` all ranks
    call it, and each has a part of the conversations."""
    for row in rows:
        if isinstance(row["prompt"], str):
            raise UserError(
                f"{environments.name}: the prompt {row['prompt']!r:.60} is a text: give messages, "
                '[{"role": "user", "content": …}]'
            )
    stop_at(policy, environments.end_ids(policy.tokenizer))
    width = environments.options.completion_tokens(options["max_new_tokens"])
    context = policy.context_length
    rooms = [width if context is None else min(width, context - len(ids)) for ids in prompt_ids]
    names = torch.tensor(list(options["sample_ids"]), dtype=torch.long)
    keys: list[int] = draw_keys(options["seed"], options["step"], names, SEED_TURN).tolist()
    own = sampled_share(len(rows)) if together else slice(None)
    seeds, patience = [key & LARGEST_SEED for key in keys[own]], environments.patience(options["max_new_tokens"])
    conversations = Conversations(environments, policy, rows[own], rooms[own], seeds, patience)
    draw = sample_on_all_ranks if together else sample
    done = draw(policy, prompt_ids, replies=conversations, max_tokens=width, **options)
    transcripts = conversations.ended()
    if together:
        share = rank_share(len(rows))
        transcripts = [
            transcript for part in ranks.all_gather(transcripts[: share.stop - share.start]) for transcript in part
        ]
    return done, transcripts


def transcript_extras(transcripts: Sequence[Transcript]) -> dict[str, tuple[Any, ...]]:
    """What is kept with each sample."""
    return {
        REWARD: tuple(None if transcript.error is not None else sum(transcript.earned) for transcript in transcripts),
        EARNED: tuple(transcript.earned for transcript in transcripts),
        CONVERSATION: tuple(_with_rewards(transcript) for transcript in transcripts),
        "turns": tuple(len(transcript.spans) for transcript in transcripts),
        "cut": tuple(transcript.cut for transcript in transcripts),
        ERROR: tuple(transcript.error for transcript in transcripts),
    }


def _with_rewards(transcript: Transcript) -> list[Message]:
    """The messages, each turn of the policy with what it earned and what the environment logged."""
    turns = iter(zip_longest(transcript.rewards, transcript.logs))
    shown: list[Message] = []
    for message in transcript.messages:
        reward, log = next(turns, (None, None)) if message["role"] == "assistant" else (None, None)
        shown.append({**message} | ({} if reward is None else {"reward": reward}) | ({"log": log} if log else {}))
    return shown


def turn_sums(transcripts: Sequence[Transcript]) -> TurnSums:
    """What the metrics `turns/…` are made of."""
    count = len(transcripts)
    sums: dict[str, float] = {
        "turns/mean": sum(len(transcript.spans) for transcript in transcripts),
        "turns/cut": sum(transcript.cut == "turns" for transcript in transcripts),
        "turns/failed": sum(transcript.error is not None for transcript in transcripts),
    }
    counts = dict.fromkeys(sums, count)
    for transcript in transcripts:
        for turn, earned in enumerate(transcript.earned, start=1):
            name = f"{TURN_REWARD}{turn}"
            sums[name], counts[name] = sums.get(name, 0.0) + earned, counts.get(name, 0) + 1
    complete = [transcript.logs for transcript in transcripts if transcript.error is None]
    return TurnSums(
        sums,
        counts,
        sum(reward is not None for transcript in transcripts for reward in transcript.rewards),
        len(complete),
        *_logged(complete),
    )


def add_log(log: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Of one name, numbers add up, None stays, and else the later value counts."""
    for name, value in more.items():
        before = log.get(name, 0 if isinstance(value, int | float) else value)
        if before is None or value is None:
            log[name] = None
        elif isinstance(before, int | float) and isinstance(value, int | float):
            log[name] = before + value
        else:
            log[name] = value


def _logged(conversations: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, float], dict[str, int]]:
    """The sum of each number over all conversations that have it, and how many say by None that they have none."""
    totals: dict[str, float] = {}
    missing: Counter[str] = Counter()
    for logs in conversations:
        without = {name for log in logs for name, value in log.items() if value is None}
        missing.update(without)
        for name, value in (item for log in logs for item in log.items()):
            if isinstance(value, int | float) and abs(value) < LARGEST and name not in without:
                totals[name] = totals.get(name, 0.0) + value
    return totals, dict(missing)
