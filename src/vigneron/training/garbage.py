"""Python's garbage collector during a run."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EARLY_STEPS = 2
"""In the first steps of a run code is compiled and CUDA graphs are captured, which make objects that stay."""
MOST_AT_START = 1000
"""Objects that Python itself has frozen when it starts: none, but 375 in 3.12."""


@contextmanager
def unwatched_objects(*, collect: bool) -> Iterator[Callable[[], None]]:
    """Within this block the collector leaves alone what exists at its start. Otherwise a collection walks over all
    objects of torch, transformers and the model, for a quarter of a second, in the middle of a step.

    With `collect` it first collects garbage, which may hold a device's memory. The block is given a function to call
    after each step: then what the early steps have made is left alone too.
    """
    if gc.get_freeze_count() > MOST_AT_START:  # somebody else's
        yield lambda: None
        return
    if collect:
        gc.collect()
    gc.freeze()
    steps = 0

    def after_step() -> None:
        nonlocal steps
        steps += 1
        if collect and steps <= EARLY_STEPS:
            gc.collect()
            gc.freeze()

    try:
        yield after_step
    finally:
        gc.unfreeze()
