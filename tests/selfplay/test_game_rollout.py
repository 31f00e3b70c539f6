"""Games of several roles: each sees its own side, the policy's roles are trained, and each is compared with itself."""

import re
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from support.games import ROWS, game_config, game_rollout, played, policy_of
from support.resuming import TrainedOnce, check_third_arm, lose_nothing
from support.talking import Letters, talking_folder, what_hangs
from vigneron import api
from vigneron.core.draws import Sampling
from vigneron.data.prompts import prompt_text
from vigneron.environments.game import Round
from vigneron.errors import UserError
from vigneron.labels.from_run import comparisons_of_run, open_samples
from vigneron.labels.live_sampling import load_sampler
from vigneron.policy.logprobs import score
from vigneron.rollout import reply_draft
from vigneron.run_store.folder import RunFolder
from vigneron.selfplay import players, seat


def test_each_role_is_a_sample_with_its_own_view() -> None:
    policy = policy_of()
    samples = played(policy).samples
    assert len(samples) == 12
    assert samples.columns["role"] == (("ann",) * 3 + ("bob",) * 3) * 2
    assert samples.group_B.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert len(set(samples.sample_B.tolist())) == 12
    for i in range(12):
        role, topic = samples.columns["role"][i], samples.columns["topic"][i]
        assert samples.prompts[i][0]["content"] == f"{role} {topic}"
        assert len(samples.spans[i]) == 2
        ids = [*samples.prompt_ids[i], *samples.completion_lists()[i]]
        for (_, stop), (start, _) in pairwise(samples.spans[i]):
            assert policy.tokenizer.decode(ids[stop:start]).endswith("<|vigneron_model|>")
    ann, bob = samples.completions[0], samples.completions[3]
    assert bob[1]["content"] == str(len(ann[2]["content"]))
    assert ann[1]["content"] == str(len(bob[0]["content"]))
    assert samples.prompts[3][-1]["content"] == str(len(ann[0]["content"]))


class Logging(Letters):
    """Four moves in turn, each of which is logged."""

    def play(self, turns: dict[str, str]) -> Round:
        (role,) = turns
        return replace(super().play(turns), log={"moves": 1, f"of_{role}": 1})


def test_what_a_game_logs_is_kept_for_every_role_and_adds_up() -> None:
    batch = played(**{"class": f"{__name__}:Logging"})
    turns = batch.samples.extras["turns"]
    for talk in batch.samples.extras["conversation"]:
        logs = [message["log"] for message in talk if "log" in message]
        assert sum(log["moves"] for log in logs) == 4
        assert (sum(log.get("of_ann", 0) for log in logs), sum(log.get("of_bob", 0) for log in logs)) == (2, 2)
    assert set(turns) == {2}
    assert batch.signals.metrics["turns/moves"] == 4.0
    assert batch.signals.metrics["turns/of_ann"] == 2.0


@pytest.mark.parametrize("game", ["support.talking:Letters", f"{__name__}:Flooding"])
def test_what_seats_read_is_tokenized_together_and_is_the_same(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(own: Any) -> Any:
        def call(tokenizer: Any, texts: Any, *rest: Any, **given: Any) -> Any:
            calls.append(len(texts))
            return own(tokenizer, texts, *rest, **given)

        return call

    monkeypatch.setattr(seat, "prompts_token_ids", counted(seat.prompts_token_ids))
    monkeypatch.setattr(reply_draft, "replies_ids", counted(reply_draft.replies_ids))
    options = {"class": game, "max_reply_tokens": 40}
    together = played(**options).samples
    assert min(calls[:2]) >= 6

    def one_by_one(tokenizer: Any, seats: Any, most: int) -> None:
        for each in seats:
            seat.read_unread(tokenizer, [each], most)

    monkeypatch.setattr(players, "read_unread", one_by_one)
    calls.clear()
    apart = played(**options).samples
    assert set(calls) == {1}
    assert apart.prompt_ids == together.prompt_ids
    assert apart.completion_ids == together.completion_ids
    assert apart.extras == together.extras


def test_what_one_wins_the_other_loses() -> None:
    batch = played()
    earned = batch.samples.extras["environment_reward"]
    assert [earned[i] + earned[i + 3] for i in (0, 1, 2, 6, 7, 8)] == [0.0] * 6
    for i, messages in enumerate(batch.samples.completions):
        own = [float(m["content"][-1:].islower()) for m in messages if m["role"] == "assistant"]
        place = i + 3 if batch.samples.columns["role"][i] == "ann" else i - 3
        others = [
            float(m["content"][-1:].islower()) for m in batch.samples.completions[place] if m["role"] == "assistant"
        ]
        assert earned[i] == sum(own) - sum(others)
    assert batch.signals.metrics["roles/ann/reward"] == pytest.approx(-batch.signals.metrics["roles/bob/reward"])


def test_log_probs_are_those_of_a_plain_pass() -> None:
    policy = policy_of()
    batch = played(policy)
    mask = batch.samples.mask_BT
    now = score(policy, batch, Sampling()).logprobs_BT.detach()
    torch.testing.assert_close(batch.samples.behaviour_BT[mask], now[mask], atol=1e-5, rtol=0)


def test_roles_may_speak_at_once() -> None:
    batch = played(**{"class": "support.talking:Together"})
    assert batch.samples.extras["turns"] == (2,) * 12
    ann, bob = batch.samples.completions[0], batch.samples.completions[3]
    assert ann[1]["content"] == str(len(bob[0]["content"]))
    assert batch.samples.extras["environment_reward"][0] == 2.0
    assert batch.samples.extras["environment_reward"][3] == 0.0
    cut = played(**{"class": "support.talking:Together", "max_turns": 1}).samples
    assert cut.extras["turns"] == (1,) * 12
    assert cut.extras["cut"] == ("turns",) * 12


class Flooding:
    """Its roles read a text or, if it is the second row's, many messages, after their first turns."""

    roles = ("ann", "bob")

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        self.topic, self.rounds = row["topic"], 0

    def start(self) -> Round:
        return Round(self.roles, dict.fromkeys(self.roles, "go"))

    def play(self, turns: dict[str, str]) -> Round:
        self.rounds += 1
        news = "y" * 10_000 if self.topic == "one" else [{"role": "user", "content": "x"}] * 60
        return Round(() if self.rounds == 2 else self.roles, dict.fromkeys(self.roles, news))


def test_what_a_game_writes_is_cut_at_max_reply_tokens() -> None:
    policy = policy_of()
    batch = played(policy, **{"class": f"{__name__}:Flooding", "max_reply_tokens": 40})
    samples = batch.samples
    assert samples.extras["turns"] == (2,) * 6 + (1,) * 6
    assert samples.extras["cut"] == (None,) * 6 + ("context",) * 6
    for spans, messages in zip(samples.spans[:6], samples.completions[:6], strict=True):
        assert 20 < spans[1][0] - spans[0][1] <= 40
        assert messages[1]["content"].endswith("y\n[the rest is cut]")
    mask = samples.mask_BT
    now = score(policy, batch, Sampling()).logprobs_BT.detach()
    torch.testing.assert_close(samples.behaviour_BT[mask], now[mask], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_frozen_model_plays_and_is_not_trained(tmp_path: Path) -> None:
    other = {"kind": "local", "model": str(talking_folder(tmp_path))}
    batch = played(players={"bob": other})
    assert set(batch.samples.columns["role"]) == {"ann"}
    assert len(batch) == 6
    plain = played()
    assert batch.samples.completions[0][0] == plain.samples.completions[0][0]
    assert batch.samples.completions[0] == plain.samples.completions[0]  # the same weights, and the same draws


class Broken:
    roles = ("ann", "bob")
    how = "raises"

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        self.seed = seed

    def start(self) -> Any:
        return Round(["ann"], {"ann": "go"})

    def play(self, turns: dict[str, str]) -> Any:
        if self.how == "raises" and self.seed % 2:
            raise KeyError("lost")
        return Round((), {}, {"ann": 1.0})


class Opening(Broken):
    """The second row's opening is longer than a context; with `release`, it hangs when it is made."""

    release: threading.Event | None = None

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__(row, seed)
        self.topic = row["topic"]
        if self.release is not None and self.topic != "one":
            self.release.wait()

    def start(self) -> Any:
        return Round(["ann"], {"ann": "go" if self.topic == "one" else "z" * 5000})

    def play(self, turns: dict[str, str]) -> Any:
        return Round((), {}, {"ann": 1.0})


def test_an_opening_that_does_not_fit_takes_its_episode_out() -> None:
    """One that fails so early has no sample; the run stops when too many of it have failed."""
    rollout = game_rollout(**{"class": f"{__name__}:Opening"})
    batch = rollout(ROWS, step=1)
    assert batch.samples.columns["topic"] == ("one",) * 3
    assert batch.samples.extras["environment_error"] == (None,) * 3
    assert batch.signals.metrics["turns/failed"] == 0.5
    with pytest.raises(UserError) as error:
        rollout(ROWS, step=2)
    assert "6 of 12 episodes so far failed before the policy's first turn, above the limit of 5%" in str(error.value)
    assert "it opened 'ann' with 50" in str(error.value)
    assert "more than the model's context of " in str(error.value)


def test_if_no_episode_gets_to_the_policy_the_run_stops_at_once() -> None:
    rows = [{"prompt": "y", "topic": "two words"}]
    with pytest.raises(UserError, match="failed for all 3 episodes of a step: it opened 'ann' with 50"):
        game_rollout(**{"class": f"{__name__}:Opening"})(rows, step=1)


def test_a_game_that_hangs_when_it_is_made_takes_its_episode_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Opening, "release", what_hangs(monkeypatch))
    batch = played(**{"class": f"{__name__}:Opening", "timeout_s": 1, "concurrency": 1})
    assert batch.samples.columns["topic"] == ("one",) * 3
    assert batch.signals.metrics["turns/failed"] == 0.5
    assert Opening.release is not None
    Opening.release.set()


@pytest.mark.slow
def test_a_game_that_fails_takes_its_episode_out(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = played(**{"class": f"{__name__}:Broken"})
    failed = [error is not None for error in batch.samples.extras["environment_error"]]
    assert any(failed)
    assert not all(failed)
    rewards = batch.samples.extras["environment_reward"]
    assert [reward is None for reward in rewards] == failed
    for bad, message in (
        ("x", "gave no valid reply: a Round is needed, not str"),
        (Round("ann"), "`to_play` should be a list of roles, not 'ann'"),
        (Round(["ann", "ann"]), "`to_play` names a role twice"),
        (Round([["ann"]]), "`to_play` should be a list of roles, not [['ann']]"),  # type: ignore[list-item]
        (Round(["ann"], {}), "'ann' is to play and has nothing new to read: give it a message"),
        (Round(None), "`to_play` should be a list of roles, not None"),  # type: ignore[arg-type]
        (Round([], None), "`messages` should be a dict with roles as keys"),  # type: ignore[arg-type]
        (Round(["eve"]), "`to_play` names 'eve', which is none of the roles ann, bob"),
        (Round(["ann"], {}, {"ann": "1"}), "`reward` should be a finite number or None, not '1'"),
        (Round(["ann"], {}, {"ann": float("nan")}), "`reward` should be a finite number or None, not nan"),
    ):
        monkeypatch.setattr(Broken, "play", lambda self, turns, bad=bad: bad)
        batch_error = pytest.raises(UserError, match="failed for all 6 episodes")
        with batch_error as caught:
            played(**{"class": f"{__name__}:Broken"})
        assert message in str(caught.value)


class Roles(Letters):
    """Tells one role something in a role that the template refuses, in the first row's episodes."""

    def __init__(self, row: dict[str, Any], seed: int, listener: str) -> None:
        super().__init__(row, seed)
        self.listener = listener

    def play(self, turns: dict[str, str]) -> Round:
        done = super().play(turns)
        told = done.messages.get(self.listener)
        if self.topic != "one" or told is None:
            return done
        return replace(done, messages={self.listener: [{**message, "role": "tool"} for message in told]})


@pytest.mark.parametrize(
    ("listener", "why"),
    [
        ("ann", "gave a message that the model's chat template cannot write, with the role 'tool': unknown role tool"),
        (
            "bob",
            "opened 'bob' with messages that cannot be written, with the roles 'tool', 'user': .*unknown role tool",
        ),
    ],
)
def test_a_role_that_the_template_cannot_write_takes_its_episode_out(listener: str, why: str) -> None:
    batch = played(**{"class": f"{__name__}:Roles", "options": {"listener": listener}})
    errors = zip(batch.samples.columns["topic"], batch.samples.extras["environment_error"], strict=True)
    of_topic = dict(errors)
    assert re.match(why, of_topic.pop("one"))
    assert of_topic == {"two words": None}
    assert batch.signals.metrics["turns/failed"] == 0.5


class Silent(Broken):
    """The second row's game goes on without a word."""

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        self.topic = row["topic"]

    def play(self, turns: dict[str, str]) -> Round:
        return Round((), {}, {"ann": 1.0}) if self.topic == "one" else Round(["ann"], {})


def test_a_turn_with_nothing_to_read_takes_its_episode_out() -> None:
    batch = played(**{"class": f"{__name__}:Silent"})
    error = "gave no valid reply: 'ann' is to play and has nothing new to read: give it a message"
    assert batch.samples.extras["environment_error"] == (None,) * 3 + (error,) * 3
    assert batch.samples.extras["environment_reward"] == (1.0,) * 3 + (None,) * 3
    assert batch.signals.metrics["turns/failed"] == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class": "support.talking:Counting"}, "has no `roles`: a game has roles, start() and play(turns)"),
        ({"players": {"eve": {"kind": "local", "model": "x"}}}, "'eve' is none of the game's roles: ann, bob"),
        ({"players": {role: {"kind": "local", "model": "x"} for role in ("ann", "bob")}}, "the policy plays no role"),
        ({"options": {"colour": 1}}, "cannot be called as Class(row, seed, **options)"),
    ],
)
def test_what_is_no_game_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        played(**given)
    assert message in str(error.value)


@pytest.mark.slow
def test_three_arms(tmp_path: Path, trained_once: TrainedOnce) -> None:
    folder = talking_folder(tmp_path / "model")
    whole = trained_once("game", lambda place: game_config(folder, place, steps=4, eval_every=2, save_every=2))
    text = (whole / "metrics.jsonl").read_text()
    assert "roles/ann/reward" in text
    assert "eval/reward" in text
    check_third_arm(whole, tmp_path, lose_nothing)


@pytest.mark.slow
def test_a_run_trains_both_roles(tmp_path: Path) -> None:
    run = api.train(
        game_config(talking_folder(tmp_path / "model"), tmp_path, steps=2, eval_every=2), runs=tmp_path / "runs"
    )
    assert "roles/bob/reward" in (run.folder / "metrics.jsonl").read_text()
    with open_samples(run.folder) as store:
        samples = {prompt_text(sample.extras["opening"]): sample for sample in store.page(step=2)}
    items = comparisons_of_run(run.folder, kind="best", step=2, seed=0).items
    assert items
    for item in items:
        sample = samples[prompt_text(item.prompt)]
        assert sample.prompt == prompt_text(item.prompt)
        assert all(completion[0]["role"] == "assistant" for completion in item.completions)
    with pytest.raises(UserError, match="label the samples that it has, `vigneron label"):
        load_sampler(str(run.folder), temperature=1.0, max_new_tokens=None)


class Halves:
    """Over two rounds ann is paid for letters of the alphabet's first half, bob for those of the second."""

    roles = ("ann", "bob")
    paid: ClassVar = {"ann": "abcdefghijklm", "bob": "nopqrstuvwxyz"}

    def __init__(self, row: Any, seed: int) -> None:
        self.said = dict.fromkeys(self.roles, "")
        self.rounds = 2

    def start(self) -> Round:
        return Round(self.roles, {role: role for role in self.roles})

    def play(self, turns: dict[str, str]) -> Round:
        self.rounds -= 1
        self.said = {role: self.said[role] + text for role, text in turns.items()}
        if self.rounds:
            return Round(self.roles, dict.fromkeys(self.roles, "go on"))
        return Round((), {}, {role: self._share(role) for role in self.roles})

    def _share(self, role: str) -> float:
        letters = [letter for letter in self.said[role].lower() if letter.isalpha()]
        return sum(letter in self.paid[role] for letter in letters) / len(letters) if letters else 0.0


@pytest.mark.slow
def test_each_role_learns_what_it_is_paid_for(tmp_path: Path) -> None:
    """One policy, opposite rewards: a reward that went to the other role would be seen here."""
    config = game_config(
        talking_folder(tmp_path / "model"),
        tmp_path,
        steps=40,
        prompts_per_step=6,
        group_size=8,
        optimizer={"actor_lr": 3e-3},
        environment={"kind": "game", "class": f"{__name__}:Halves", "max_turns": 3},
    )
    records = RunFolder(api.train(config, runs=tmp_path / "runs").folder).metrics()
    for role in Halves.roles:
        earned = [record[f"roles/{role}/reward"] for record in records if f"roles/{role}/reward" in record]
        assert sum(earned[:5]) / 5 < 0.6
        assert sum(earned[-5:]) / 5 > 0.65, role
