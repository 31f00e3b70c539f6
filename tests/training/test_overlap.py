"""An asynchronous reward: the batch is the same, and its waiting is hidden behind the sampling of what follows."""

import asyncio
import threading

import pytest
import torch

from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.rewards.apply import ApplyReward, RewardFailed
from vigneron.rollout.on_policy import OnPolicy
from vigneron.training.collect import PARTS, rewarding
from vigneron.training.method import Method

ROWS = [{"prompt": f"word {i}", "answer": str(i)} for i in range(6)]


def method_of(reward: ApplyReward, rollout=None) -> Method:
    rollout = rollout or OnPolicy(tiny_policy(), Sampling(), max_new_tokens=4, group_size=2, seed=5)
    return Method(rollout, reward, lambda batch: batch, None)  # type: ignore[arg-type]


def drawn(method: Method, rows: list[dict[str, str]], step: int) -> Batch:
    return rewarding(method)(rows, step)


def score(completions: list[str], answer: list[str]) -> list[float]:
    return [len(c) + float(a) for c, a in zip(completions, answer, strict=True)]


def test_in_parts_the_batch_is_the_one_sampled_whole() -> None:
    calls: list[int] = []

    async def later(prompts, completions, answer, log_extra, log_metric, **others):
        calls.append(len(completions))
        log_extra("twice", [2 * a for a in score(completions, answer)])
        log_metric("mean", sum(score(completions, answer)) / len(answer))
        await asyncio.sleep(0.01)
        return score(completions, answer)

    def at_once(prompts, completions, answer, log_extra, log_metric, **others):
        log_extra("twice", [2 * a for a in score(completions, answer)])
        log_metric("mean", sum(score(completions, answer)) / len(answer))
        return score(completions, answer)

    whole = drawn(method_of(ApplyReward(at_once)), ROWS, step=3)
    parts = drawn(method_of(ApplyReward(later)), ROWS, step=3)
    assert sorted(calls, reverse=True) == [4, 4, 4]
    assert len(calls) <= PARTS
    for name in ("prompt_ids", "spans", "prompts", "completions", "columns", "extras", "completion_ids"):
        assert getattr(parts.samples, name) == getattr(whole.samples, name)
    for name in ("group_B", "sample_B", "truncated_B", "mask_BT"):
        assert torch.equal(getattr(parts.samples, name), getattr(whole.samples, name))
    assert torch.equal(parts.signals.rewards_B, whole.signals.rewards_B)
    assert torch.equal(
        parts.samples.completion_BT[whole.samples.mask_BT], whole.samples.completion_BT[whole.samples.mask_BT]
    )
    torch.testing.assert_close(parts.samples.behaviour_BT, whole.samples.behaviour_BT, atol=1e-5, rtol=0)
    assert parts.signals.metrics == pytest.approx(whole.signals.metrics)


def test_the_reward_of_a_part_runs_while_the_next_is_sampled() -> None:
    """Each waits for the other, so that one after the other would never end."""
    asked, sampled_again = threading.Event(), threading.Event()
    sampled = OnPolicy(tiny_policy(), Sampling(), max_new_tokens=2, seed=5)

    def rollout(rows, step, first) -> Batch:
        if first > 0:
            assert asked.wait(60)
            sampled_again.set()
        return sampled(rows, step, first)

    async def reward(completions, **others):
        asked.set()
        assert await asyncio.to_thread(sampled_again.wait, 60)
        return [1.0] * len(completions)

    drawn(method_of(ApplyReward(reward), rollout), ROWS[:4], step=0)


def test_missing_rewards_are_counted_over_the_whole_step() -> None:
    """One part without any reward is not a step without any."""

    async def reward(completions, answer, **others):
        return [None if a in "01" else 1.0 for a in answer]

    batch = drawn(method_of(ApplyReward(reward, missing_limit=0.5)), ROWS, step=0)
    assert batch.signals.rewards_B.isnan().sum() == 4
    with pytest.raises(RewardFailed, match="missing"):
        drawn(method_of(ApplyReward(reward, missing_limit=0.01)), ROWS, step=0)


def test_all_parts_run_on_one_event_loop() -> None:
    """A semaphore, like an HTTP client, belongs to the loop that first used it."""
    one_at_a_time = asyncio.Semaphore(1)
    loops = set()

    async def reward(completions, **others):
        async with one_at_a_time:
            loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0.02)
        return [1.0] * len(completions)

    apply = ApplyReward(reward)
    for step in range(2):
        assert drawn(method_of(apply), ROWS, step=step).signals.rewards_B.tolist() == [1.0] * 12
    assert len(loops) == 1
