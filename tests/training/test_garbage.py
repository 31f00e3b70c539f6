"""Cycles that are made during a run are collected during it; those from before, after it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from support.fixtures import count_frozen
from vigneron.training.garbage import EARLY_STEPS, unwatched_objects


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suite's own process has frozen its objects, and does not count them. No collection starts by itself here."""
    monkeypatch.setattr(gc, "get_freeze_count", count_frozen)
    gc.unfreeze()
    gc.disable()
    yield
    gc.enable()
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_exists_is_left_alone_until_the_end() -> None:
    before = Cycle()
    old = weakref.ref(before)
    with unwatched_objects(collect=False):
        assert gc.get_freeze_count() > 0
        with unwatched_objects(collect=False):  # a run inside a run ends nothing
            pass
        assert gc.get_freeze_count() > 0
        del before
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None
        assert old() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_what_python_has_frozen_at_its_start_is_not_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 begins with 375 frozen objects; so a run left all others to the collector there."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    with unwatched_objects(collect=False):
        assert count_frozen() > 1000
    assert count_frozen() == 0


@pytest.mark.slow
def test_what_nobody_uses_is_freed_first() -> None:
    unused = weakref.ref(Cycle())
    with unwatched_objects(collect=True):
        assert unused() is None


@pytest.mark.slow
def test_what_the_early_steps_made_is_left_alone_and_what_later_ones_made_is_not() -> None:
    with unwatched_objects(collect=True) as after_step:
        for step in range(1, EARLY_STEPS + 2):
            unused, made = weakref.ref(Cycle()), Cycle()
            kept = weakref.ref(made)
            after_step()
            assert (unused() is None) == (step <= EARLY_STEPS)
            del made
            gc.collect()
            assert (kept() is not None) == (step <= EARLY_STEPS)


@pytest.mark.slow
def test_without_a_device_nothing_is_collected_between_steps() -> None:
    with unwatched_objects(collect=False) as after_step:
        unused = weakref.ref(Cycle())
        after_step()
        assert unused() is not None
        gc.collect()  # and it was not frozen
        assert unused() is None
