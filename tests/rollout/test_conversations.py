"""Conversations with environments: what is trained, what it earned, and what happens to one that fails."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support.talking import LETTERS, AsyncCounting, Counting, counted, talking_model, what_hangs
from vigneron.batch import Batch, concatenate
from vigneron.config import PythonEnvironmentConfig
from vigneron.core.draws import Sampling
from vigneron.core.losses import policy_gradient
from vigneron.data.prompts import completion_text
from vigneron.environments.build import Environments, build_environments
from vigneron.environments.reply import BadReply, Reply, checked_reply
from vigneron.errors import UserError
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.environment import environment_reward
from vigneron.rollout import conversations
from vigneron.rollout.conversations import EARNED, Transcript, add_log, turn_sums
from vigneron.rollout.on_policy import OnPolicy

ROWS = [
    {"prompt": [{"role": "user", "content": text}], "wanted": n} for text, n in (("one", 3), ("and two", 2), ("x", 1))
]


def options(**given: Any) -> PythonEnvironmentConfig:
    return PythonEnvironmentConfig.model_validate(
        {"kind": "python", "class": "support.talking:Counting", "max_turns": 3, "max_reply_tokens": 12} | given
    )


def policy_of(positions: int = 256) -> Policy:
    model, tokenizer = talking_model(positions=positions)
    return make_policy(model, tokenizer, device=torch.device("cpu"))


def talked(
    environment: Any = Counting, policy: Policy | None = None, rows: list[dict[str, Any]] = ROWS, **given: Any
) -> Batch:
    make: Callable[..., Any] = environment
    environments = Environments("environment 'mine'", make, options(**given))
    rollout = OnPolicy(
        policy or policy_of(), Sampling(), 8, group_size=4, seed=5, stop=tuple(LETTERS), environments=environments
    )
    return rollout(rows, step=2)


def test_turns_and_replies_alternate_and_only_turns_are_trained() -> None:
    policy = policy_of()
    samples = talked(policy=policy).samples
    assert {len(spans) for spans in samples.spans} == {1, 2, 3}
    for i in range(len(samples)):
        ids = [*samples.prompt_ids[i], *samples.completion_lists()[i]]
        prompt, messages = samples.prompts[i], samples.completions[i]
        roles = ["assistant", "user"] * len(samples.spans[i])
        assert [message["role"] for message in messages] == roles[:-1]
        for (start, stop), message in zip(samples.spans[i], messages[::2], strict=True):
            assert policy.tokenizer.decode(ids[start:stop], skip_special_tokens=True) == message["content"]
        for turn, ((_, stop), (start, _)) in enumerate(pairwise(samples.spans[i]), start=1):
            written = policy.tokenizer.decode(ids[stop:start])
            ending = "" if ids[stop - 1] in policy.eos_ids else "<end>"
            assert written == f"{ending}<|vigneron_user|>{turn}?<|vigneron_model|>"
        mask = samples.mask_BT[i]
        assert mask.sum() == sum(stop - start for start, stop in samples.spans[i])
        assert (samples.behaviour_BT[i][~mask] == 0).all()
        assert len(prompt) == 1


def test_turns_that_are_answered_in_parts_are_answered_as_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together = talked().samples
    monkeypatch.setattr(conversations, "TURNS_AT_ONCE", 1)
    parts = talked().samples
    assert parts.completions == together.completions
    assert parts.spans == together.spans


def test_log_probs_of_every_turn_are_those_of_a_plain_pass() -> None:
    policy = policy_of()
    batch = talked(policy=policy)
    now = score(policy, batch, Sampling()).logprobs_BT
    mask = batch.samples.mask_BT
    torch.testing.assert_close(batch.samples.behaviour_BT[mask], now.detach()[mask], atol=1e-5, rtol=0)


def test_the_gradient_of_a_conversation_is_that_of_plain_transformers() -> None:
    policy = policy_of()
    batch = talked(policy=policy, rows=ROWS[:1])
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    now = score(policy, batch, Sampling()).logprobs_BT
    advantages = torch.linspace(-1, 2, len(batch))[:, None].expand_as(now)
    ours = torch.autograd.grad((policy_gradient(now, advantages) * batch.samples.mask_BT).sum(), weights)
    loss = torch.zeros(())
    for i in range(len(batch)):
        ids = torch.tensor([[*batch.samples.prompt_ids[i], *batch.samples.completion_lists()[i]]])
        logprobs = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        for start, stop in batch.samples.spans[i]:
            loss = loss - float(advantages[i, 0]) * logprobs[start - 1 : stop - 1].sum()
    for one, other in zip(ours, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_rewards_are_kept_by_turn_and_summed() -> None:
    batch = talked()
    for earned, turns, messages in zip(
        batch.samples.extras["environment_reward"],
        batch.samples.extras["environment_rewards"],
        batch.samples.completions,
        strict=True,
    ):
        assert turns == tuple(float(message["content"][-1:].islower()) for message in messages[::2])
        assert earned == sum(turns)
    counts = [len(spans) for spans in batch.samples.spans]
    assert batch.signals.metrics["turns/mean"] == sum(counts) / 12
    first = [turns[0] for turns in batch.samples.extras["environment_rewards"]]
    assert batch.signals.metrics["turns/reward/1"] == pytest.approx(sum(first) / 12)
    assert batch.signals.metrics["turns/odd"] == pytest.approx(sum((count + 1) // 2 for count in counts) / 12)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"patience": 0}, {"patience": 3}, {"concurrency": 1}])
def test_async_ones_and_functions_give_the_same_batch(given: dict[str, Any]) -> None:
    built = build_environments(options(**{"class": "support.talking:counted"}), None)
    plain = talked()
    for environment in (AsyncCounting, built.make):
        other = talked(environment, **given)
        assert torch.equal(other.samples.completion_BT, plain.samples.completion_BT)
        assert other.samples.spans == plain.samples.spans
        assert other.samples.completions == plain.samples.completions
        assert other.samples.columns == plain.samples.columns


def test_seeds_differ_between_samples_and_are_the_same_in_every_call() -> None:
    seeds: list[list[int]] = []

    class Seeded(Counting):
        def __init__(self, row: dict[str, Any], seed: int) -> None:
            super().__init__(row, seed)
            seeds[-1].append(seed)

    for _ in range(2):
        seeds.append([])
        talked(Seeded, concurrency=1)
    assert len(set(seeds[0])) == 12
    assert seeds[0] == seeds[1]
    assert all(0 <= seed < 2**63 for seed in seeds[0])


def test_all_that_wait_are_answered_at_once() -> None:
    """Each reply waits for another one, which would never come if they were asked one after the other."""
    both = threading.Barrier(2)

    class Waiting(Counting):
        def reply(self, messages: list[dict[str, Any]]) -> Reply:
            both.wait()
            return Reply(done=True)

    policy = policy_of()
    policy.eos_ids = frozenset(range(260))  # turns of one token
    batch = talked(Waiting, policy)
    assert batch.samples.extras["turns"] == (1,) * 12


class Failing(Counting):
    """Fails in one of four samples of a group, each time in another way. Made one at a time, so in order."""

    made = 0

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__(row, seed)
        self.number = Failing.made
        Failing.made += 1
        if self.number % 12 == 1:
            raise RuntimeError("no seat")

    def reply(self, messages: list[dict[str, Any]]) -> Any:
        if self.number % 12 == 4:
            raise KeyError("lost")
        if self.number % 12 == 7:
            return 0.5
        if self.number % 12 == 8:
            return Reply("go on", reward=float("nan"))
        if self.number % 12 == 10:
            raise SystemExit(3)
        return super().reply(messages)


def test_an_environment_that_fails_takes_its_sample_out_and_no_other() -> None:
    Failing.made = 0
    batch = talked(Failing, concurrency=1)
    errors = batch.samples.extras["environment_error"]
    assert {i for i, error in enumerate(errors) if error is not None} == {1, 4, 7, 8, 10}
    assert errors[1].startswith("raised RuntimeError: no seat (test_conversations.py, line ")
    assert errors[1].endswith(" when it was made")
    assert errors[4].startswith("raised KeyError: 'lost' (test_conversations.py, line ")
    assert errors[7] == "gave no valid reply: a Reply or a text is needed, not float"
    assert errors[8] == "gave no valid reply: `reward` should be a finite number or None, not nan"
    assert errors[10] == "called exit(3)"
    assert [i for i, earned in enumerate(batch.samples.extras["environment_reward"]) if earned is None] == [
        1,
        4,
        7,
        8,
        10,
    ]
    assert batch.signals.metrics["turns/failed"] == pytest.approx(5 / 12)
    plain = talked()
    for i in (0, 2, 3, 5, 6, 9, 11):
        assert batch.samples.completions[i] == plain.samples.completions[i]


def test_what_a_conversation_does_not_have_is_not_zero_in_its_metrics() -> None:
    """Of ten conversations four failed, one of them after it had logged; one has no right answer, and one no tries."""
    found, failed = Transcript(logs=[{"found": 0.0, "tries": 2}, {"found": 1.0}]), Transcript(error="raised KeyError")
    talks = [*[found] * 4, Transcript(logs=[{"found": None, "tries": 3}]), Transcript(logs=[{"found": 1.0}])]
    talks += [*[failed] * 3, Transcript(logs=[{"found": 0.0, "tries": 9}], error="hung")]
    metrics = turn_sums(talks).metrics()
    assert metrics["turns/found"] == 1.0
    assert metrics["turns/tries"] == pytest.approx((4 * 2 + 3 + 0) / 6)
    assert metrics["turns/failed"] == 0.4
    assert not {"turns/found", "turns/tries"} & set(turn_sums(talks[6:]).metrics())


class Uneven(Counting):
    """Each row's conversations log and fail in a way of their own."""

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        wanted = self.row["wanted"]
        if wanted == 2 and self.seed % 2:
            raise ValueError(wanted)
        log = {3: {"three": 5.0}, 2: {"odd": None}, 1: {}}[wanted]
        return replace(super().reply(messages), log=log, reward=-1.0 if wanted == 3 else None)


def test_metrics_of_the_parts_of_a_step_are_those_of_all_its_conversations() -> None:
    """Parts of unequal size, in which not every turn, name or reward is there."""
    environments = Environments("environment 'mine'", Uneven, options())
    rollout = OnPolicy(policy_of(), Sampling(), 8, group_size=4, seed=5, stop=tuple(LETTERS), environments=environments)
    whole = rollout(ROWS, step=2).signals.metrics
    assert {"turns/mean", "turns/three", "turns/failed", "turns/reward/1", "turns/reward/3"} <= set(whole)
    assert 0 < whole["turns/failed"] < 1 / 3
    for cut in (1, 2):
        first, second = rollout(ROWS[:cut], 2, 0), rollout(ROWS[cut:], 2, cut)
        for together in (concatenate([first, second]), concatenate([second, first])):
            assert together.signals.metrics == pytest.approx(whole)


class Unpaid(Counting):
    """Gives no reward."""

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        return replace(super().reply(messages), reward=None)


def test_a_turn_without_a_reward_earns_nothing_and_shows_none() -> None:
    batch = talked(Unpaid)
    assert set(batch.samples.extras["environment_reward"]) == {0.0}
    assert not any("reward" in message for talk in batch.samples.extras["conversation"] for message in talk)
    assert "turns/reward/1" not in batch.signals.metrics
    assert "turns/reward/1" in talked().signals.metrics


def test_whatever_the_reward_a_failed_sample_has_none() -> None:
    Failing.made = 0
    reward = ApplyReward(lambda completions, **columns: [1.0] * len(completions), missing_limit=0.9)
    batch = reward(talked(Failing, concurrency=1))
    assert [i for i, gone in enumerate(batch.signals.rewards_B.isnan().tolist()) if gone] == [1, 4, 7, 8, 10]


def test_if_all_fail_the_reward_says_why() -> None:
    class Broken(Counting):
        def reply(self, messages: list[dict[str, Any]]) -> Any:
            raise ValueError("broken")

    reward = ApplyReward(environment_reward)
    with pytest.raises(
        UserError, match=r"missing for all 12 samples of a step; the environment raised ValueError: broken"
    ):
        reward(talked(Broken))


class Changing(Counting):
    """Changes what it is given: the row, its prompt, and messages."""

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__(row, seed)
        row["prompt"].append({"role": "user", "content": "forged"})
        row["list"].append(1)
        assert row["list"] == [1]

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        reply = super().reply(messages)
        messages[0]["content"] = "forged"
        messages.clear()
        return reply


def test_what_an_environment_changes_is_its_own() -> None:
    rows = [{**row, "list": []} for row in ROWS]
    plain = talked(rows=rows)
    changed = talked(Changing, rows=rows)
    assert changed.samples.completions == plain.samples.completions
    assert changed.samples.prompts == plain.samples.prompts
    assert all(row["list"] == [] and len(row["prompt"]) == 1 for row in rows)


class Text:
    def __str__(self) -> str:
        raise RuntimeError("no text")


DEEP: Any = {}
DEEP["itself"] = DEEP


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply([{"role": "user", "content": "\ud800"}]), "a message cannot be written as JSON"),
        (Reply([{"role": "user", "content": "x", "more": DEEP}]), "a message cannot be written as JSON"),
        (Reply("x", reward=10**400), "`reward` should be a number or None, not int"),
        (Reply("x", reward=1e39), "`reward` should be a finite number or None, not 1e+39"),
        (Reply("x", reward=b"1.0"), "`reward` should be a finite number or None, not b'1.0'"),  # type: ignore[arg-type]
        (Reply("x", log={"failed": 1}), "may not have the name 'failed': `turns/failed` is a figure of every run"),
        (Reply("x", log={"deep": DEEP}), "`log` cannot be written as JSON"),
        (Reply("x", log={"text": Text()}), "`log` cannot be written as JSON"),
        (Reply("x", log={"row": SimpleNamespace(item="x")}), "cannot be written as JSON: a value of type SimpleName"),
        (Reply("x", log={"t": torch.ones(2)}), "`log` cannot be written as JSON"),
        (Reply("x", log={"long": "x" * 30_000}), "`log` should have at most 20000 characters"),
        (Reply("x", log=None), "`log` should be a dict"),  # type: ignore[arg-type]
        (Reply("x", done="yes"), "`done` should be True or False, not 'yes'"),  # type: ignore[arg-type]
        (Reply([]), "not empty unless `done`"),
        (Reply([{"role": "assistant", "content": "x"}]), "a message's role should be one of user, system, tool"),
    ],
)
def test_a_reply_that_cannot_be_used_says_so(reply: Reply, message: str) -> None:
    with pytest.raises(BadReply) as error:
        checked_reply(reply)
    assert message in str(error.value)


def test_what_is_logged_twice_of_a_turn_adds_up() -> None:
    log: dict[str, Any] = {"points": 1, "text": "a", "none": None, "new none": 2.0}
    add_log(log, {"points": 5, "text": "b", "none": 3, "new none": None, "new": 0.5, "flag": True})
    assert log == {"points": 6, "text": "b", "none": None, "new none": None, "new": 0.5, "flag": True}


def test_numbers_of_numpy_and_torch_are_fine() -> None:
    log = {"n": np.int64(3), "t": torch.tensor(2.5), "many": [np.float32(0.5)]}
    reply = checked_reply(Reply("x", np.float32(0.5), np.bool_(False), log))  # type: ignore[arg-type]
    assert (reply.reward, reply.done, reply.log) == (0.5, False, {"n": 3, "t": 2.5, "many": [0.5]})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), TimeoutError()])
def test_async_code_that_exits_takes_its_sample_out_and_no_other(error: BaseException) -> None:
    class Exiting(Failing):
        async def reply(self, messages: list[dict[str, Any]]) -> Any:
            if self.number % 12 == 2:
                raise error
            return Counting.reply(self, messages)

    Failing.made = 0
    errors = talked(Exiting, concurrency=1).samples.extras["environment_error"]
    assert [i for i, each in enumerate(errors) if each is not None] == [1, 2]


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = what_hangs(monkeypatch)

    class Hanging(Failing):
        def __init__(self, row: dict[str, Any], seed: int) -> None:
            super().__init__(row, seed)
            if self.number % 12 == 5:
                forever.wait()

        def reply(self, messages: list[dict[str, Any]]) -> Any:
            if self.number % 12 == 2:
                forever.wait()
            return Counting.reply(self, messages)

    assert not build_environments(options(), None).at_once  # type: ignore[union-attr]
    Failing.made = 0
    batch = talked(Hanging, timeout_s=2, concurrency=1)  # the others are called in its place
    forever.set()
    errors = batch.samples.extras["environment_error"]
    assert errors[2] == "took longer than 2 s"
    assert errors[5] == "took longer than 2 s when it was made"
    assert sum(error is not None for error in errors) == 3


def test_a_turn_that_cannot_be_read_takes_its_sample_out() -> None:
    class Library(Counting):
        """Its `read` and `cut` have nothing to do with turns."""

        cut = 3

        def read(self, page: int) -> str:
            raise AssertionError

    class Unread(Counting):
        def read_turn(self, raw: str, text: str) -> Any:
            assert self.row["wanted"] > 1, "no call"
            return {"role": "assistant", "content": text} if self.row["wanted"] > 2 else text

    assert talked(Library, max_turns=2).samples.extras["environment_error"] == (None,) * 12
    errors = talked(Unread).samples.extras["environment_error"]
    assert errors[:4] == (None,) * 4
    assert all("an assistant's message is needed, not" in error for error in errors[4:8])
    assert all("raised AssertionError: no call" in error and "in `read_turn`" in error for error in errors[8:])


class Roles(Counting):
    """Answers with a role that the template of `talking_model` refuses, in conversations of three turns."""

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        reply = super().reply(messages)
        role = "tool" if self.row["wanted"] == 3 and self.turns == 2 else "user"
        return replace(reply, messages=[{"role": role, "content": "3"}])


def test_a_role_that_the_template_cannot_write_takes_its_sample_out() -> None:
    batch = talked(Roles)
    errors = batch.samples.extras["environment_error"]
    failed = [i for i, error in enumerate(errors) if error is not None]
    assert {errors[i] for i in failed} == {
        "gave a message that the model's chat template cannot write, with the role 'tool': "
        "unknown role tool: expected system, user or assistant"
    }
    assert failed == [i for i in range(4) if batch.samples.extras["cut"][i] is None]
    assert batch.signals.metrics["turns/failed"] == len(failed) / 12
    assert batch.samples.extras["turns"][failed[0]] == 2
    assert batch.samples.extras["environment_reward"][failed[0]] is None
    with pytest.raises(UserError, match=r"above the limit .* cannot write, with the role 'tool'"):
        ApplyReward(environment_reward, missing_limit=0.01)(batch)


@pytest.mark.slow
def test_a_reply_that_floods_is_cut() -> None:
    class Flooding(Counting):
        def reply(self, messages: list[dict[str, Any]]) -> Reply:
            super().reply(messages)
            return Reply("y" * 10_000, done=self.turns == 3)

    batch = talked(Flooding, max_reply_tokens=40)
    for spans, completion in zip(batch.samples.spans, batch.samples.completions, strict=True):
        for (_, stop), (start, _) in pairwise(spans):
            assert 20 < start - stop <= 40
        assert all(message["content"].endswith("y\n[the rest is cut]") for message in completion[1::2])
    with pytest.raises(UserError, match="the chat template alone takes"):
        talked(max_reply_tokens=2)


def test_a_reply_of_too_many_messages_ends_its_conversation_and_not_the_run() -> None:
    """As after a turn with many calls: the template alone is longer than `max_reply_tokens`."""

    class Many(Counting):
        def reply(self, messages: list[dict[str, Any]]) -> Reply:
            return Reply([{"role": "user", "content": "x"}] * (30 if self.row["wanted"] == 2 else 1))

    batch = talked(Many, max_reply_tokens=12)
    cuts, turns = batch.samples.extras["cut"], batch.samples.extras["turns"]
    assert set(cuts[4:8]) <= {"context", "length"}
    assert "context" in cuts[4:8]
    assert set(turns[4:8]) == {1}
    assert "context" not in cuts[:4] + cuts[8:]
    assert "turns" in cuts


def test_a_conversation_that_fills_the_context_ends_and_is_truncated() -> None:
    batch = talked(lambda row, seed: Counting({}, seed), policy_of(positions=24), max_turns=8, max_reply_tokens=12)
    cuts = batch.samples.extras["cut"]
    assert set(cuts) <= {"context", "length", None}
    assert "context" in cuts
    assert [bool(t) for t in batch.samples.truncated_B] == [cut is not None for cut in cuts]
    assert all(spans[-1][1] <= 24 for spans in batch.samples.spans)


def test_it_ends_after_so_many_turns() -> None:
    batch = talked(lambda row, seed: Counting({"wanted": 99}, seed), max_turns=2)
    turns, cuts = batch.samples.extras["turns"], batch.samples.extras["cut"]
    assert all((turn == 2 and cut == "turns") or cut == "length" for turn, cut in zip(turns, cuts, strict=True))
    assert batch.signals.metrics["turns/cut"] == pytest.approx(sum(cut == "turns" for cut in cuts) / 12)
    assert any(cut == "turns" for cut in cuts)


@pytest.mark.slow
def test_an_environment_may_score_a_conversation_that_is_cut() -> None:
    class Scoring(Counting):
        def cut(self) -> Reply:
            return Reply(reward=10.0 / self.row["scale"], done=True, log={"late": 1})

    def of(environment: Any, scale: int) -> Any:
        made = talked(lambda row, seed: environment({"wanted": 2 + row["wanted"], "scale": scale}, seed), max_turns=3)
        return made.samples.extras

    plain, scored, broken = of(Counting, 1), of(Scoring, 1), of(Scoring, 0)
    assert {"turns", None} <= set(plain["cut"])
    for i, turns in enumerate(plain["turns"]):
        ended = turns == 2 + ROWS[i // 4]["wanted"]  # by the environment
        *before, last = plain[EARNED][i]
        assert scored[EARNED][i] == (*before, last + 10.0 * (not ended))
        error = broken["environment_error"][i]
        assert error is None if ended else error.startswith("raised ZeroDivisionError")


def test_a_prompt_that_is_a_text_is_a_users_message() -> None:
    batch = talked(rows=[{"prompt": "one", "wanted": 3}])
    assert batch.samples.prompt_ids == talked(rows=ROWS[:1]).samples.prompt_ids


def test_the_text_of_a_conversation_is_its_last_answer() -> None:
    said = [
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "13"},
        {"role": "assistant", "content": "14"},
    ]
    assert completion_text(said) == "14"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class": "support.talking:LETTERS"}, "has no function 'LETTERS'"),
        ({"class": "support.talking:Nothing"}, "has no function 'Nothing'"),
        ({"class": "pathlib:Path"}, "'pathlib:Path' has no method `reply"),
        ({"options": {"colour": 1}}, "cannot be called as Class(row, seed, **options): got an unexpected keyword"),
        ({"class": "support.talking:talking_folder"}, "cannot be called as reply(messages, row, seed, **options)"),
    ],
)
def test_a_class_that_is_none_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_environments(options(**given), None)
    assert message in str(error.value)


def test_a_function_is_made_into_one() -> None:
    made = build_environments(options(**{"class": "support.talking:counted"}), None).make({"wanted": 1}, 3)
    assert made.reply([{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}]) == Reply(
        "1?", 1.0, True
    )
    assert counted([{"role": "user", "content": ""}, {"role": "assistant", "content": "A"}], {}, 0).reward == 0.0
