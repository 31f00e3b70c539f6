"""The reward slot: what a reward is given, what it may return, and what is said when it fails."""

import asyncio
import math

import pytest
import torch

from vigneron.batch import Batch, Samples, Signals
from vigneron.errors import UserError
from vigneron.rewards.apply import ApplyReward, RewardFailed


def make_batch(size: int = 3) -> Batch:
    return Batch(
        Samples(
            prompt_ids=((5,),) * size,
            completion_BT=torch.arange(2 * size).reshape(size, 2),
            spans=(((1, 2),),) + (((1, 3),),) * (size - 1),
            behaviour_BT=torch.zeros(size, 2),
            truncated_B=torch.zeros(size, dtype=torch.bool),
            group_B=torch.zeros(size, dtype=torch.int64),
            sample_B=torch.arange(size),
            prompts=tuple(f"p{i}" for i in range(size)),
            completions=tuple(f"c{i}" for i in range(size)),
            columns={"answer": tuple(f"a{i}" for i in range(size)), "level": tuple(range(size))},
            extras={"before": ("x",) * size},
        ),
        signals=Signals(metrics={"before": 1.0}),
    )


def returning(*values: object):
    def mine(**given: object) -> list[object]:
        return list(values)

    return mine


def test_a_reward_is_called_with_trls_keywords_and_its_parts_are_kept() -> None:
    seen: dict[str, object] = {}

    def mine(prompts, completions, completion_ids, *, log_extra, log_metric, **columns):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        log_extra("length", [len(ids) for ids in completion_ids])
        log_metric("share", torch.tensor(0.25))
        return [0.5, torch.tensor(-2.0), True]

    batch = make_batch()
    done = ApplyReward(mine)(batch)
    assert seen == {
        "prompts": ["p0", "p1", "p2"],
        "completions": ["c0", "c1", "c2"],
        "completion_ids": [[0], [2, 3], [4, 5]],  # the first row's second token is padding
        "completion_truncated": batch.samples.truncated_B.tolist(),
        "answer": ["a0", "a1", "a2"],
        "level": [0, 1, 2],
    }
    assert done.signals.rewards_B.tolist() == [0.5, -2.0, 1.0]
    assert done.signals.rewards_B.dtype == torch.float32
    assert done.samples.extras == {"before": ("x", "x", "x"), "length": (1, 2, 2)}
    assert done.signals.metrics == {"before": 1.0, "reward/share": 0.25}
    assert batch.signals.rewards_B is None
    assert batch.samples.extras == {"before": ("x", "x", "x")}


def test_none_is_missing_and_becomes_nan_which_is_not_trained_on() -> None:
    done = ApplyReward(returning(1.0, None, 0.0), missing_limit=0.5)(make_batch())
    assert done.signals.rewards_B.isnan().tolist() == [False, True, False]
    assert done.signals.rewards_B[[0, 2]].tolist() == [1.0, 0.0]
    assert done.trained_BT.int().tolist() == [[1, 0], [0, 0], [1, 1]]


def test_above_the_missing_limit_the_run_stops() -> None:
    """5 % of all samples so far, and of a hundred while there are fewer: the sixth missing one is too many."""
    reward = ApplyReward(returning(None, 1.0, 1.0))
    for _ in range(5):
        assert reward(make_batch()).signals.rewards_B.isnan().sum() == 1
    with pytest.raises(RewardFailed, match=r"'mine' is missing for 6 of 18 samples so far, above the limit of 5%"):
        reward(make_batch())
    resumed = ApplyReward(returning(None, 1.0, 1.0))
    resumed.load({"seen": 15, "missing": 5})
    with pytest.raises(RewardFailed, match="6 of 18"):
        resumed(make_batch())
    assert resumed.scalars() == {"seen": 18, "missing": 6}
    with pytest.raises(RewardFailed, match="1 of 3 samples so far, above the limit of 0%"):
        ApplyReward(returning(1.0, None, 1.0), missing_limit=0.0)(make_batch())
    with pytest.raises(RewardFailed, match="missing for all 3 samples of a step"):
        ApplyReward(returning(None, None, None))(make_batch())
    everything = ApplyReward(returning(None, None, None), missing_limit=1.0)(make_batch())
    assert everything.signals.rewards_B.isnan().all()


@pytest.mark.parametrize("huge", [10**400, -(10**4000), 1e39, -1e300])
def test_a_reward_too_large_for_float32_is_missing(huge: float) -> None:
    rewards_B = ApplyReward(returning(1.0, huge, 2.0), missing_limit=1.0)(make_batch()).signals.rewards_B
    assert [None if reward != reward else reward for reward in rewards_B.tolist()] == [1.0, None, 2.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1.0, 2.0), r"'mine' returned 2 values for 3 completions"),
        ((1.0,) * 4, r"'mine' returned 4 values for 3 completions"),
        ((1.0, math.nan, 1.0), r"'mine' returned nan for row 2; a missing reward is None, not NaN"),
        ((1.0, 1.0, -math.inf), r"'mine' returned -inf for row 3"),
        (("good", 1.0, 1.0), r"'mine' returned the text 'good' for row 1; expected a number"),
        ((1.0, [1.0], 1.0), r"'mine' returned \[1\.0\] for row 2"),
    ],
)
def test_what_is_no_list_of_numbers_is_named_with_function_and_row(values: tuple[object, ...], message: str) -> None:
    with pytest.raises(RewardFailed, match=message):
        ApplyReward(returning(*values), missing_limit=1.0)(make_batch())


@pytest.mark.parametrize(("result", "shown"), [(None, "None"), (1.0, "1.0"), ("good", "the text 'good'")])
def test_a_reward_that_returns_no_list_is_named(result: object, shown: str) -> None:
    def mine(**given: object) -> object:
        return result

    with pytest.raises(RewardFailed, match=rf"'mine' returned {shown}, not a list"):
        ApplyReward(mine)(make_batch())


def test_a_reward_that_raises_is_named_and_its_cause_kept() -> None:
    def mine(**given: object) -> list[float]:
        raise KeyError("colour")

    with pytest.raises(RewardFailed, match="'mine' raised KeyError: 'colour'") as caught:
        ApplyReward(mine)(make_batch())
    assert isinstance(caught.value.__cause__, KeyError)

    class NeedsKey:
        def __call__(self, **given: object) -> list[float]:
            raise UserError("set OPENAI_API_KEY")

    with pytest.raises(UserError, match=r"^set OPENAI_API_KEY$"):  # already says what to mend
        ApplyReward(NeedsKey())(make_batch())
    with pytest.raises(RewardFailed, match="'<lambda>' raised TypeError"):
        ApplyReward(lambda prompts: [1.0])(make_batch())


def test_parts_of_another_length_are_refused() -> None:
    def mine(log_extra, **given: object) -> list[float]:
        log_extra("part", [1, 2])
        return [1.0, 1.0, 1.0]

    with pytest.raises(RewardFailed, match=r"'mine' .*log_extra\('part'\) got 2 values for 3 completions"):
        ApplyReward(mine)(make_batch())


def test_an_async_reward_is_awaited_and_its_failure_named() -> None:
    async def mine(completions, answer, log_extra, **given: object) -> list[float]:
        async def score(text: str) -> float:
            await asyncio.sleep(0)
            return float(text[1:])

        scores = await asyncio.gather(*map(score, completions))
        log_extra("score", scores)
        return scores

    done = ApplyReward(mine)(make_batch())
    assert done.signals.rewards_B.tolist() == [0.0, 1.0, 2.0]
    assert done.samples.extras["score"] == (0.0, 1.0, 2.0)

    async def broken(**given: object) -> list[float]:
        await asyncio.sleep(0)
        raise RuntimeError("judge down")

    with pytest.raises(RewardFailed, match="'broken' raised RuntimeError: judge down"):
        ApplyReward(broken)(make_batch())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reward_that_leaves_is_named_and_nothing_waits_for_ever(is_async: bool) -> None:
    def leave(completions, **columns):
        raise SystemExit(3)

    async def leave_later(completions, **columns):
        raise SystemExit(3)

    with pytest.raises(RewardFailed, match=r"reward 'leave.*' .*exit\(3\)"):
        ApplyReward(leave_later if is_async else leave)(make_batch())

    async def afterwards(completions, **columns):
        return [1.0] * len(completions)

    assert ApplyReward(afterwards)(make_batch()).signals.rewards_B.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "wrong", [[[2, 0.5, 1]], [[-1, 0.5]], [[0.5, 0.5]], [["2", 0.5]], [[2, math.nan]], [2, 0.5], 3]
)
def test_rewards_of_steps_are_pairs(wrong: object) -> None:
    def mine(log_extra, **given: object) -> list[float]:
        log_extra("step_rewards", [[[2, 0.5], [3, -1]], None, wrong])
        return [0.0, 0.0, 0.0]

    with pytest.raises(
        RewardFailed, match=r"'mine' .*got .* for row 3; expected \[characters, reward\] pairs"
    ) as raised:
        ApplyReward(mine)(make_batch())
    assert "\n" not in str(raised.value)


def test_rewards_of_steps_are_kept_as_numbers() -> None:
    def mine(log_extra, **given: object) -> list[float]:
        log_extra("step_rewards", ([[torch.tensor(2), torch.tensor(0.5)]] if at == 0 else None for at in range(3)))
        return [0.0, 0.0, 0.0]

    assert ApplyReward(mine)(make_batch()).samples.extras["step_rewards"] == ([[2, 0.5]], None, None)


def test_rewards_of_steps_need_the_whole_completion() -> None:
    """With a delimiter the reward counts the characters of the answer alone."""

    def mine(log_extra, **given: object) -> list[float]:
        log_extra("step_rewards", [[[0, 0.5]], None, None])
        return [0.0, 0.0, 0.0]

    with pytest.raises(RewardFailed, match=r"needs the whole completion: leave out `reward.sees: answer`"):
        ApplyReward(mine, delimiter="c")(make_batch())
