"""Python's garbage collector during a run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwatched_objects(*, collect: bool) -> Iterator[None]:
    """Within this block the collector leaves alone what exists at its start. Otherwise a collection walks over all
    objects of torch, transformers and the model, for a quarter of a second, in the middle of a step.

    With `collect` it first collects garbage, which may hold a device's memory.
    """
    if gc.get_freeze_count():  # somebody else's
        yield
        return
    if collect:
        gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
