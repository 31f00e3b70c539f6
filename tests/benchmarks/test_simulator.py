"""The simulator: small cases worked by hand, and what must hold of every case."""

import pytest
from benchmarks.simulator.plant import Plant, Service
from benchmarks.simulator.simulate import simulate, synchronous
from hypothesis import given, settings
from hypothesis import strategies as st

seconds = st.floats(0.0, 5.0, allow_nan=False).map(lambda value: round(value, 2))


@st.composite
def plants(draw: st.DrawFn, *, jitter: bool = False) -> Plant:
    noise = draw(st.sampled_from([0.0, 0.3])) if jitter else 0.0
    return Plant(
        rows=draw(st.integers(1, 12)),
        samplers=draw(st.integers(1, 3)),
        sampling=Service(draw(seconds), draw(seconds), noise),
        parts=draw(st.integers(1, 3)),
        judges=draw(st.integers(0, 4)),
        judging=Service(draw(seconds), 0.0, noise),
        update_s=draw(seconds) + 0.01,
        sync_s=draw(seconds),
    )


TRAINER = Plant(rows=4, sampling=Service(0.0, 1.0), update_s=3.0, sync_s=1.0)


def test_one_after_the_other() -> None:
    """4 rows of a second, 3 s of update, 1 s of sync: 8 s a step."""
    trace = simulate(TRAINER, 3)
    assert trace.ends == (8.0, 16.0, 24.0)
    assert trace.sampler_idle == pytest.approx(0.5)
    assert trace.trainer_idle == pytest.approx(0.5)
    assert trace.device_idle == 0.0
    assert trace.staleness == {0: 12}


def test_sampling_goes_on_while_weights_are_updated() -> None:
    """Step 1 is sampled from the first weights while step 0 is updated: from 4 s on, everybody works all the time."""
    trace = simulate(TRAINER, 3, staleness=1)
    assert trace.ends == (8.0, 12.0, 16.0)
    assert trace.staleness == {0: 4, 1: 8}
    assert trace.sampler_idle == pytest.approx(1 - 12 / 16)
    assert trace.trainer_idle == pytest.approx(1 - 12 / 16)


def test_a_checkpoint_empties_the_pipeline() -> None:
    """With one every second step, step 2 waits for the weights of step 1: 8 + 4, twice."""
    trace = simulate(TRAINER, 4, staleness=1, drain_every=2)
    assert trace.ends == (8.0, 12.0, 20.0, 24.0)
    assert trace.staleness == {0: 8, 1: 8}


def test_judges_work_on_one_part_while_the_next_is_sampled() -> None:
    """Two parts of 2 s; two judges of 3 s each: the first part is judged from 2 to 5, the second from 5 to 8."""
    plant = Plant(rows=4, parts=2, sampling=Service(0.0, 1.0), judges=2, judging=Service(3.0), update_s=1.0)
    assert simulate(plant, 1).ends == (9.0,)
    assert simulate(plant, 1).judge_idle == pytest.approx(1 - 12 / 18)
    whole = Plant(rows=4, parts=1, sampling=Service(0.0, 1.0), judges=2, judging=Service(3.0), update_s=1.0)
    assert simulate(whole, 1).ends == (11.0,)


def test_rows_are_dealt_evenly() -> None:
    plant = Plant(rows=7, samplers=3, parts=2)
    assert plant.shares() == [[2, 1], [1, 1], [1, 1]]


@given(plants(jitter=True), st.integers(1, 6), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_no_staleness_is_synchronous(plant: Plant, steps: int, seed: int) -> None:
    trace = simulate(plant, steps, seed=seed)
    assert trace.elapsed_s == pytest.approx(synchronous(plant, steps, seed=seed))
    assert set(trace.staleness) == {0}


@given(plants(jitter=True), st.integers(1, 6), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_idle_shares_are_shares_and_staleness_is_bounded(
    plant: Plant, steps: int, staleness: int, drain: int, seed: int
) -> None:
    trace = simulate(plant, steps, staleness=staleness, drain_every=drain, seed=seed)
    for share in (trace.sampler_idle, trace.judge_idle, trace.trainer_idle, trace.device_idle):
        assert 0.0 <= share <= 1.0
    assert max(trace.staleness) <= staleness
    assert sum(trace.staleness.values()) == steps * plant.rows
    assert trace == simulate(plant, steps, staleness=staleness, drain_every=drain, seed=seed)


@given(plants(), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_nothing_is_faster_than_its_bottleneck(plant: Plant, steps: int, staleness: int) -> None:
    trace = simulate(plant, steps, staleness=staleness)
    assert trace.elapsed_s >= steps * plant.shortest_step_s() * (1 - 1e-9)


@given(plants(jitter=True), st.integers(1, 8), st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_more_staleness_is_never_slower(plant: Plant, steps: int, staleness: int, drain: int) -> None:
    less = simulate(plant, steps, staleness=staleness, drain_every=drain)
    more = simulate(plant, steps, staleness=staleness + 1, drain_every=drain)
    assert more.elapsed_s <= less.elapsed_s * (1 + 1e-9)
