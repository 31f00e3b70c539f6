"""Who plays a role: the policy in training, a frozen model, or an endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vigneron.config import EndpointPlayerConfig, LocalPlayerConfig, PlayerConfig
from vigneron.core.draws import Sampling
from vigneron.data.prompts import prompts_token_ids, texts_of
from vigneron.distributed import ranks
from vigneron.environments.calls import Call, CallFailed, Calls
from vigneron.errors import UserError
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.model import Policy
from vigneron.rollout.engine.sample import sample, sample_on_all_ranks
from vigneron.selfplay.frozen_model import load_frozen
from vigneron.selfplay.seat import Seat, read_unread
from vigneron.sources.client import ChatReply, Client, base_url

ENDPOINT_TIMEOUT_S = 300.0
"""Seconds for a turn with all its retries."""

PLAYERS = "environment.players"
"""The key of the config that errors of players name."""

Play = Callable[[Sequence[Seat], int, Sequence[int]], None]
"""`play(seats, turn, names)`: a turn of each seat. `names` key the random draws."""


@dataclass(frozen=True)
class HowToSample:
    """What all players share."""

    sampling: Sampling | None
    max_new_tokens: int
    max_reply_tokens: int
    seed: int
    step: int
    microbatch_tokens: int
    stop: tuple[str, ...]
    together: bool


def policy_turns(policy: Policy, how: HowToSample, seats: Sequence[Seat], turn: int, names: Sequence[int]) -> None:
    """Turns of the policy in training: tokens and log-probs are kept."""
    stop_at_turn_end(policy, [seats[0].unread or seats[0].prompt])
    read_unread(policy.tokenizer, seats, how.max_reply_tokens)
    limit = policy.context_length
    full = [s for s in seats if limit and len(s.prompt_ids) + len(s.completion_ids) + how.max_new_tokens > limit]
    for seat in full:
        if seat.completion_ids:
            seat.transcript.cut = "context"
        else:
            length = len(seat.prompt_ids)
            seat.transcript.error = (
                f"opened {seat.role!r} with {length} tokens: with max_new_tokens: {how.max_new_tokens} that is more "
                f"than the model's context of {limit}"
            )
    kept = [seat.transcript.cut is None and seat.transcript.error is None for seat in seats]
    named = [(seat, name) for seat, name, keep in zip(seats, names, kept, strict=True) if keep]
    if not named:
        return
    done = _drawn(policy, how, [(*s.prompt_ids, *s.completion_ids) for s, _ in named], turn, [n for _, n in named])
    rows = zip(done.ids_BT.tolist(), done.behaviour_BT.tolist(), done.lengths_B.tolist(), strict=True)
    ids = [(row[:length], logprobs[:length]) for row, logprobs, length in rows]
    texts = texts_of(policy.tokenizer, [row for row, _ in ids])
    for (seat, _), (row, logprobs), text, cut in zip(named, ids, texts, done.truncated_B.tolist(), strict=True):
        seat.write(text, row, logprobs, cut)


def _drawn(
    policy: Policy, how: HowToSample, prompts: Sequence[tuple[int, ...]], turn: int, names: Sequence[int]
) -> Any:
    return (sample_on_all_ranks if how.together else sample)(
        policy,
        prompts,
        max_new_tokens=how.max_new_tokens,
        sampling=how.sampling,
        seed=how.seed,
        step=how.step,
        sample_ids=names,
        microbatch_tokens=how.microbatch_tokens,
        stop=how.stop,
        turn=turn,
    )


class LocalPlayer:
    """A frozen model: it reads the conversation anew at every turn, with its own template."""

    def __init__(self, config: LocalPlayerConfig, device: str) -> None:
        self._config, self._device = config, device
        self._policy: Policy | None = None

    def __call__(self, how: HowToSample, seats: Sequence[Seat], turn: int, names: Sequence[int]) -> None:
        if self._policy is None:
            self._policy = load_frozen(self._config.model, self._config.adapter, self._device)
        policy = self._policy
        with torch.no_grad():
            conversations = [_read(seat) for seat in seats]
            stop_at_turn_end(policy, conversations)
            done = _drawn(policy, how, prompts_token_ids(policy.tokenizer, conversations), turn, names)
        rows = zip(done.ids_BT.tolist(), done.lengths_B.tolist(), strict=True)
        for seat, text in zip(seats, texts_of(policy.tokenizer, [ids[:n] for ids, n in rows]), strict=True):
            _answered(seat, text)


class EndpointPlayer:
    """A model behind an endpoint; at temperature 0, so that a resumed run asks what it asked before."""

    def __init__(self, config: EndpointPlayerConfig, role: str, concurrency: int | None) -> None:
        self._config, self._where = config, f"{PLAYERS}.{role}"
        self._client = Client(base_url(config.url, self._where), self._where, timeout_s=60.0, retries=3)
        self._calls = Calls(concurrency, ENDPOINT_TIMEOUT_S)

    def __call__(self, how: HowToSample, seats: Sequence[Seat], turn: int, names: Sequence[int]) -> None:
        conversations = [_read(seat) for seat in seats]
        answered = partial(self._answers, conversations, how.max_new_tokens)
        # Rank 0 asks for all: an endpoint need not answer the same twice.
        answers = ranks.run_on_rank0(answered) if how.together else answered()
        for seat, (text, error) in zip(seats, answers, strict=True):
            if error is None:
                _answered(seat, text)
            seat.transcript.error = error

    def _answers(self, conversations: Sequence[Any], max_tokens: int) -> list[tuple[str, str | None]]:
        """The text of each turn, or what went wrong. Raises what no retry can mend."""
        requests = [partial(self._ask, messages, max_tokens) for messages in conversations]
        return [self._answer(call) for call in self._calls.start(requests)]

    def _answer(self, call: Call) -> tuple[str, str | None]:
        try:
            reply = call.result()
        except CallFailed as error:
            if isinstance(error.__cause__, UserError):
                raise error.__cause__ from None
            return "", f"{self._where}: {error}"
        return (reply.text, None) if isinstance(reply, ChatReply) else ("", f"{self._where}: {reply.why}")

    def _ask(self, messages: Any, max_tokens: int) -> Any:
        return self._client.chat(self._config.model, messages, max_tokens=max_tokens)


def build_player(config: PlayerConfig, role: str, device: str, concurrency: int | None) -> Any:
    if config.kind == "local":
        return LocalPlayer(config, device)
    assert config.kind == "endpoint"  # a reference is resolved to a local one
    return EndpointPlayer(config, role, concurrency)


def policy_player(policy: Policy) -> Any:
    return partial(policy_turns, policy)


def _read(seat: Seat) -> list[Any]:
    """The conversation up to its turn."""
    if not seat.prompt:
        seat.prompt = list(seat.unread)
    else:
        seat.transcript.messages += seat.unread
    seat.unread = []
    return seat.conversation


def _answered(seat: Seat, text: str) -> None:
    seat.transcript.messages.append({"role": "assistant", "content": text})
