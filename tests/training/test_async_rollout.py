"""Sampling ahead, and what corrects for it: which version a step trains on, and the weight of a token."""

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.data.curriculum import Curriculum
from vigneron.errors import NonFinite, UserError
from vigneron.recipe import check_config
from vigneron.training.async_rollout import AsyncRollout, Prefetcher, check_staleness, next_boundary
from vigneron.training.importance_weights import importance


def requests(make: Any, publish: Any = lambda: None) -> Any:
    """What `Prefetcher` is given: `make(step, weights)` for each step, of weights that are published first."""

    def request(steps: Sequence[int]) -> list[Any]:
        weights = publish()
        return [partial(make, step, weights) for step in steps]

    return request


def versions(steps: int, staleness: int, eval_every: int, save_every: int) -> list[int]:
    """The version that each step's samples come from, by a loop like the real one."""
    config: Any = SimpleNamespace(steps=steps, eval_every=eval_every, save_every=save_every)
    now = 0
    request = requests(lambda step, weights: weights, lambda: now)
    ahead = Prefetcher(staleness, lambda step: next_boundary(config, step), request)
    found: list[int] = []
    for step in range(steps):
        found.append(ahead.batch_of(step))  # type: ignore[arg-type]
        now += 1
    ahead.close()
    return found


def test_by_hand() -> None:
    """Two steps back, and never over a multiple of 5: steps 5 to 7 begin together."""
    assert versions(9, 2, 5, 0) == [0, 0, 0, 1, 2, 5, 5, 5, 6]
    assert versions(4, 1, 0, 0) == [0, 0, 1, 2]
    assert versions(4, 1, 0, 2) == [0, 0, 2, 2]


@given(st.integers(1, 12), st.integers(0, 4), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_never_older_than_asked_nor_from_beyond_a_checkpoint(steps: int, stale: int, every: int, save: int) -> None:
    for step, version in enumerate(versions(steps, stale, every, save)):
        assert step - stale <= version <= step
        assert all(version >= step // each * each for each in (every, save) if each)
        if not stale:
            assert version == step


def test_the_next_step_is_sampled_while_this_one_is_trained() -> None:
    """It would wait for ever if the second batch were begun after the first was used."""
    begun = threading.Event()

    def make(step: int, weights: Any) -> Any:
        if step == 1:
            begun.set()
        return step

    ahead = Prefetcher(1, lambda step: 10, requests(make))
    assert ahead.batch_of(0) == 0
    assert begun.wait(60)
    ahead.close()


def test_what_fails_in_the_thread_is_raised_where_it_trains() -> None:
    def make(step: int, weights: Any) -> Any:
        raise UserError("the judge is gone")

    with pytest.raises(UserError, match="the judge is gone"):
        Prefetcher(1, lambda step: 10, requests(make)).batch_of(0)


def test_a_step_that_is_passed_over_is_not_the_last() -> None:
    """What is not finite may be skipped: the steps behind it come."""

    def make(step: int, weights: Any) -> Any:
        if step == 1:
            raise NonFinite("a reward is NaN")
        return step

    ahead = Prefetcher(2, lambda step: 10, requests(make))
    assert ahead.batch_of(0) == 0
    with pytest.raises(NonFinite):
        ahead.batch_of(1)
    assert [ahead.batch_of(step) for step in (2, 3, 4)] == [2, 3, 4]
    ahead.close()


def test_one_version_behind_nobody_samples_while_weights_are_given_out() -> None:
    """A server that holds one version would be changed under a step that is being sampled."""
    holds = {"version": 0}
    seen: list[tuple[int, int]] = []

    def publish() -> int:
        holds["version"] += 1
        return holds["version"]

    def make(step: int, weights: Any) -> Any:
        for _ in range(20):
            seen.append((weights, holds["version"]))
            time.sleep(0.001)
        return step

    ahead = Prefetcher(1, lambda step: 100, requests(make, publish))
    for step in range(6):
        assert ahead.batch_of(step) == step
    ahead.close()
    assert len(seen) >= 120
    assert all(wanted == held for wanted, held in seen)


def test_the_curriculum_is_asked_by_the_thread_in_which_it_observes() -> None:
    """Which rows a step has does not depend on how fast the other thread is."""
    asked: list[tuple[int, int]] = []

    class Rising(Curriculum):
        level = 0

        def at(self, step: int) -> list[Any]:
            assert threading.current_thread() is threading.main_thread()
            asked.append((step, self.level))
            return []

    def rollout(rows: Any, step: int = 0, first: int = 0) -> Any:
        return SimpleNamespace(with_metrics=lambda metrics: batch)

    batch = SimpleNamespace(signals=SimpleNamespace(metrics={"version": 0}), with_metrics=lambda metrics: batch)
    sampler = SimpleNamespace(publish=lambda: SimpleNamespace(version=0), use=lambda weights: None)
    config: Any = SimpleNamespace(steps=6, eval_every=0, save_every=0, scale=SimpleNamespace(staleness=1))
    curriculum = Rising([], 1, 0)
    policy: Any = SimpleNamespace(sampler=sampler, device=torch.device("cpu"))
    ahead = AsyncRollout(rollout, curriculum, config, policy)
    for step in range(6):
        ahead([], step)
        curriculum.level = step + 1  # what `observe` would do
    ahead.close()
    assert asked == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


def test_weights_by_hand() -> None:
    """π₀ / behaviour = 2, 1/2 and 8, limited to 3; a token that was not drawn counts whole, and one masked out not."""
    behaviour_BT = torch.tensor([[0.1, 0.4, 0.1], [math.nan, 0.5, 0.9]]).log()
    now_BT = torch.tensor([[0.2, 0.2, 0.8], [0.3, 0.5, 0.1]]).log()
    mask_BT = torch.tensor([[True, True, True], [True, False, False]])
    weights_BT, figures = importance(now_BT, behaviour_BT, mask_BT, 3.0)
    torch.testing.assert_close(weights_BT[0], torch.tensor([2.0, 0.5, 3.0]))
    assert weights_BT[1, 0] == 1.0
    assert figures["importance/mean"] == pytest.approx((2 + 0.5 + 8 + 1) / 4)
    assert figures["importance/max"] == pytest.approx(8.0)
    assert figures["importance/limited"] == pytest.approx(0.25)
    assert figures["importance/gap"] == pytest.approx((math.log(2) + math.log(2) + math.log(8)) / 3)


def test_weights_that_are_masked_or_by_text_by_hand() -> None:
    """Ratios 2, 1/2 and 8: with mask and limit 3 the last is dropped. Their geometric mean is 2, for every token."""
    behaviour_BT = torch.tensor([[0.1, 0.4, 0.1, 0.5], [0.1, 0.4, 0.1, 0.5]]).log()
    now_BT = torch.tensor([[0.2, 0.2, 0.8, 0.5], [0.1, 0.1, 0.01, 0.5]]).log()
    mask_BT = torch.tensor([[True, True, True, False]] * 2)
    masked_BT, figures = importance(now_BT, behaviour_BT, mask_BT, 3.0, mode="mask")
    torch.testing.assert_close(masked_BT[0, :3], torch.tensor([2.0, 0.5, 0.0]))
    torch.testing.assert_close(masked_BT[1, :3], torch.tensor([1.0, 0.0, 0.0]), msg="1/4 and 1/10 are below 1/3")
    assert figures["importance/limited"] == pytest.approx(3 / 6)
    by_text_BT, _ = importance(now_BT, behaviour_BT, mask_BT, 3.0, level="text")
    torch.testing.assert_close(by_text_BT[0, :3], torch.full((3,), 2.0))
    torch.testing.assert_close(by_text_BT[1, :3], torch.full((3,), (1 / 40) ** (1 / 3)))
    dropped_BT, _ = importance(now_BT, behaviour_BT, mask_BT, 3.0, mode="mask", level="text")
    assert dropped_BT[1, :3].tolist() == [0.0, 0.0, 0.0]


def test_the_weighted_mean_is_the_policys_own() -> None:
    """Σ behaviour · w · A = Σ π₀ · A over all tokens, where nothing is limited."""
    torch.manual_seed(0)
    behaviour_1V, now_1V = torch.randn(2, 1, 50, dtype=torch.float64).log_softmax(-1)
    advantage_1V = torch.randn(1, 50, dtype=torch.float64)
    weights_1V, _ = importance(now_1V, behaviour_1V, torch.ones(1, 50, dtype=torch.bool), math.inf)
    torch.testing.assert_close(
        (behaviour_1V.exp() * weights_1V * advantage_1V).sum(), (now_1V.exp() * advantage_1V).sum()
    )


def test_what_cannot_be_honoured_is_refused() -> None:
    def config(ranks: int = 1, **changes: Any) -> None:
        scale = {"sampling": {"kind": "ray"}, "staleness": 1, **changes.pop("scale", {})}
        given = {
            "method": {"name": "grpo"},
            "group_size": 4,
            "data": {"train": "rows.jsonl"},
            "reward": {"kind": "binary"},
            "scale": scale,
            **changes,
        }
        check_staleness(check_config(given, "test"), ranks)

    config()
    with pytest.raises(UserError, match="single rank"):
        config(ranks=2)
    with pytest.raises(UserError, match="every 4 steps leaves no room"):
        config(eval_every=4, save_every=20, scale={"staleness": 4})
    with pytest.raises(UserError, match="1 is the most"):
        config(scale={"staleness": 2, "sampling": {"kind": "vllm", "url": "http://127.0.0.1:1"}})
    with pytest.raises(UserError, match="needs a separate sampler"):
        config(scale={"sampling": {"kind": "here"}})
