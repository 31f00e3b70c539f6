"""The rollout of games: episodes in which roles take turns, one sample for each role that the policy plays.

All episodes go on together, round by round. Samples of one role and row are a group: a role is compared with itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from vigneron.batch import Batch, Samples, Signals, to_device
from vigneron.config import GameConfig
from vigneron.core.draws import draw_keys
from vigneron.data.prompts import Row, columns_of
from vigneron.distributed import ranks
from vigneron.environments.calls import CallFailed, Calls
from vigneron.environments.game import Game, Round, checked_round, game_class
from vigneron.environments.reply import BadReply
from vigneron.errors import UserError
from vigneron.policy.message_forms import copied
from vigneron.rollout.build import RolloutParts
from vigneron.rollout.conversations import LARGEST_SEED, SEED_TURN, transcript_extras, turn_sums
from vigneron.rollout.on_policy import OnPolicy
from vigneron.selfplay.players import PLAYERS, HowToSample, build_player, policy_player
from vigneron.selfplay.seat import Seat
from vigneron.timing import phase

ROLE = "role"
"""The column with the role of a sample."""
OPENING = "opening"
"""The extra with the messages that a role read before its first turn: the prompt of its sample."""
LIMIT_FLOOR = 100
"""`missing_limit` applies to at least this many episodes."""


@dataclass
class EpisodeCounts:
    """Episodes so far, and those that failed before the policy's first turn. A resumed run counts anew: the counts only
    say when to stop."""

    seen: int = 0
    unplayed: int = 0


@dataclass(frozen=True)
class Games:
    """`rollout(rows, step, first)`: `group_size` episodes for each row."""

    on_policy: OnPolicy
    options: GameConfig
    make: Callable[[Row, int], Game]
    roles: tuple[str, ...]
    players: Mapping[str, Any]
    missing_limit: float = 0.05
    """The largest share of all episodes so far (counting at least a hundred) that failed before the policy's first
    turn: they have no sample, so no missing reward either."""
    counts: EpisodeCounts = field(default_factory=EpisodeCounts)

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        size = self.on_policy.group_size
        episodes = Episodes(self, [row for row in rows for _ in range(size)], step, first * size)
        episodes.run()
        return self._batch(episodes, first)

    def _batch(self, episodes: "Episodes", first: int) -> Batch:
        size, policy = self.on_policy.group_size, self.on_policy.policy
        trained = [role for role in self.roles if role not in self.players]
        order = [
            episodes.seats[row + episode, role]
            for row in range(0, len(episodes.rows), size)
            for role in trained
            for episode in range(size)
        ]
        seats = [seat for seat in order if seat.transcript.spans]
        played = {seat.episode for seat in seats}
        unplayed = {
            s.episode: s.transcript.error for s in order if s.transcript.error is not None and s.episode not in played
        }
        self._count(unplayed, len(episodes.rows), none_played=not seats)
        device, width = policy.device, max(len(seat.completion_ids) for seat in seats)
        ids = torch.full((len(seats), width), policy.pad_id)
        behaviour = torch.zeros(len(seats), width)
        for i, seat in enumerate(seats):
            ids[i, : len(seat.completion_ids)] = torch.tensor(seat.completion_ids)
            behaviour[i, : len(seat.behaviour)] = torch.tensor(seat.behaviour)
        transcripts, numbers = [seat.transcript for seat in seats], {role: n for n, role in enumerate(self.roles)}
        truncated_B = torch.tensor([s.truncated or s.transcript.cut == "context" for s in seats], device=device)
        samples = Samples(
            prompt_ids=tuple(seat.prompt_ids for seat in seats),
            completion_BT=ids.to(device),
            completion_ids=tuple(seat.completion_ids for seat in seats),
            spans=tuple(
                tuple(
                    (len(seat.prompt_ids) + start, len(seat.prompt_ids) + stop) for start, stop in seat.transcript.spans
                )
                for seat in seats
            ),
            behaviour_BT=behaviour.to(device),
            truncated_B=truncated_B,
            group_B=to_device([(first + s.episode // size) * len(numbers) + numbers[s.role] for s in seats], device),
            sample_B=to_device([episodes.names[s.episode, s.role] for s in seats], device),
            prompts=tuple(seat.prompt for seat in seats),
            completions=tuple(list(transcript.messages) for transcript in transcripts),
            columns=columns_of([seat.row for seat in seats]) | {ROLE: tuple(seat.role for seat in seats)},
            extras=transcript_extras(transcripts)
            | {ROLE: tuple(seat.role for seat in seats), OPENING: tuple(seat.prompt for seat in seats)},
        )
        sums = {"turns/failed": float(len(episodes.failures()))}
        counts = {"turns/failed": len(episodes.rows)}
        for role in trained:
            earned = [sum(s.transcript.earned) for s in seats if s.role == role and s.transcript.error is None]
            if earned:
                sums[f"roles/{role}/reward"], counts[f"roles/{role}/reward"] = sum(earned), len(earned)
        turns = turn_sums(transcripts)
        turns = replace(turns, sums={**turns.sums, **sums}, counts={**turns.counts, **counts})
        signals = Signals(excluded_B=truncated_B if self.on_policy.mask_truncated else None)
        return Batch(samples, signals, policy.packing()).with_turns(turns)

    def _count(self, unplayed: Mapping[int, str | None], of: int, *, none_played: bool) -> None:
        counts, name = self.counts, f"environment '{self.options.class_}'"
        counts.seen += of
        counts.unplayed += len(unplayed)
        why = f": it {next(iter(unplayed.values()))}" if unplayed else ""
        if none_played:
            raise UserError(f"{name}: none of {of} episodes had a turn of the policy{why}")
        if counts.unplayed > self.missing_limit * max(counts.seen, LIMIT_FLOOR):
            raise UserError(
                f"{name}: {counts.unplayed} of {counts.seen} episodes so far failed before the policy's first turn, "
                f"above the limit of {self.missing_limit:.0%} (reward.missing_limit){why}"
            )


class Episodes:
    """The episodes of a step."""

    def __init__(self, games: Games, rows: Sequence[Row], step: int, first: int) -> None:
        self.games, self.rows = games, rows
        self.name = f"environment '{games.options.class_}'"
        on_policy, roles = games.on_policy, games.roles
        self.how = HowToSample(
            on_policy.sampling,
            on_policy.max_new_tokens,
            games.options.max_reply_tokens,
            on_policy.seed,
            step,
            on_policy.microbatch_tokens,
            on_policy.stop,
            on_policy.together,
        )
        places = [(episode, role) for episode in range(len(rows)) for role in roles]
        self.seats = {place: Seat(*place, row=rows[place[0]]) for place in places}
        self.names = {place: first * len(roles) + number for number, place in enumerate(places)}
        numbers = torch.arange(first, first + len(rows))
        keys: list[int] = draw_keys(on_policy.seed, step, numbers, SEED_TURN).tolist()
        self._seeds = [key & LARGEST_SEED for key in keys]
        self._calls = Calls(games.options.concurrency, games.options.timeout_s)
        self._games: list[Game | None] = []

    def run(self) -> None:
        self._take_turns()
        failed = self.failures()
        if len(failed) == len(self.rows):
            what = failed[0] if failed[0].startswith(PLAYERS) else f"it {failed[0]}"
            raise UserError(f"{self.name} failed for all {len(failed)} episodes of a step: {what}")

    def failures(self) -> list[str]:
        """What went wrong in each episode that failed."""
        transcripts = [self.seats[episode, self.games.roles[0]].transcript for episode in range(len(self.rows))]
        return [transcript.error for transcript in transcripts if transcript.error is not None]

    def _take_turns(self) -> None:
        on_policy = self.games.on_policy
        own_player = policy_player(on_policy.policy)
        players = {role: self.games.players.get(role, own_player) for role in self.games.roles}
        to_play, turn = self._follow(self._on_rank0(self._start)), 0
        while to_play := self._within_turns(to_play):
            with phase("turns"):
                for player in dict.fromkeys(players[role] for _, role in to_play):
                    own = [place for place in to_play if players[place[1]] is player]
                    player(self.how, [self.seats[p] for p in own], turn, [self.names[p] for p in own])
            turns: dict[int, dict[str, str]] = {}
            for episode, role in to_play:
                seat = self.seats[episode, role]
                if seat.transcript.error is not None or seat.transcript.cut is not None:
                    self._stop(episode, seat.transcript.error, seat.transcript.cut)
                else:
                    turns.setdefault(episode, {})[role] = str(seat.transcript.messages[-1]["content"])
            open_episodes = {episode: texts for episode, texts in turns.items() if not self._is_stopped(episode)}
            with phase("replies"):
                to_play, turn = self._follow(self._on_rank0(partial(self._played, open_episodes))), turn + 1

    def _within_turns(self, to_play: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Those of episodes in which no role would have more than `max_turns`; the others end."""
        full = {episode for episode, role in to_play if self.seats[episode, role].turns == self.games.options.max_turns}
        for episode in full:
            self._stop(episode, None, "turns")
        return [(episode, role) for episode, role in to_play if episode not in full]

    def _on_rank0(self, function: Callable[[], Any]) -> Any:
        """Games are on rank 0: they need not be the same function of their arguments twice."""
        return ranks.run_on_rank0(function) if self.games.on_policy.together else function()

    def _start(self) -> dict[int, Round | str]:
        rounds: dict[int, Round | str] = {}
        make = self.games.make
        makers = [partial(make, copied(dict(row)), seed) for row, seed in zip(self.rows, self._seeds, strict=True)]
        for episode, making in enumerate(self._calls.start(makers)):
            try:
                self._games.append(making.result())
            except CallFailed as error:  # user code: it takes its episode out
                self._games.append(None)
                rounds[episode] = f"{error} when it was made"
        made = {episode: game.start for episode, game in enumerate(self._games) if game is not None}
        return rounds | self._rounds(made)

    def _played(self, turns: Mapping[int, Mapping[str, str]]) -> dict[int, Round | str]:
        plays = {}
        for episode, texts in turns.items():
            game = self._games[episode]
            assert game is not None
            plays[episode] = partial(game.play, dict(texts))
        return self._rounds(plays)

    def _rounds(self, functions: Mapping[int, Callable[[], Any]]) -> dict[int, Round | str]:
        calls = self._calls.start(list(functions.values()))
        return {episode: self._round(call) for episode, call in zip(functions, calls, strict=True)}

    def _round(self, call: Any) -> Round | str:
        try:
            return checked_round(call.result(), self.games.roles)
        except (CallFailed, BadReply) as error:
            return str(error)

    def _follow(self, rounds: Mapping[int, Round | str]) -> list[tuple[int, str]]:
        """Tell the seats what happened; whose turn it is next."""
        to_play: list[tuple[int, str]] = []
        for episode, what in rounds.items():
            if isinstance(what, str):
                self._stop(episode, what, None)
                continue
            for role, messages in what.messages.items():
                self.seats[episode, role].unread += messages  # type: ignore[arg-type]
            for role in self.games.roles:
                seat = self.seats[episode, role]
                seat.earn(float(what.rewards.get(role, 0.0)))
                seat.note(what.log)
            if silent := [role for role in what.to_play if not self.seats[episode, role].unread]:
                why = f"{silent[0]!r} is to play and has nothing new to read: give it a message"
                self._stop(episode, str(BadReply(why)), None)
            else:
                to_play += [(episode, role) for role in what.to_play]
        return to_play

    def _stop(self, episode: int, error: str | None, cut: Any) -> None:
        for role in self.games.roles:
            transcript = self.seats[episode, role].transcript
            transcript.error, transcript.cut = transcript.error or error, transcript.cut or cut

    def _is_stopped(self, episode: int) -> bool:
        transcripts = [self.seats[episode, role].transcript for role in self.games.roles]
        return any(transcript.error is not None or transcript.cut is not None for transcript in transcripts)


def build(parts: RolloutParts, options: GameConfig) -> Games:
    """The rollout of a config with `environment.kind: game`."""
    game = game_class(options)
    roles = tuple(game.roles)
    device = str(parts.policy.device)
    players = {r: build_player(config, r, device, options.concurrency) for r, config in options.players.items()}
    assert isinstance(parts.default, OnPolicy)
    limit = 0.05 if parts.config is None else parts.config.reward.missing_limit
    return Games(parts.default, options, partial(game, **options.options), roles, players, limit)
