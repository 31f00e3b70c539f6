"""Asynchronous sampling: the next steps are sampled and rewarded while the weights are updated.

Step t trains on samples of version max(v, t − k) of the weights, k being the staleness and v the version at which the
line began: what is trained on depends on no clock. Nothing is begun beyond a step after which the run is evaluated or
saved, so a checkpoint has no samples on their way, and a run resumed from it is the run. (One that a signal asked for
in between is another matter: its line begins anew.)
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config, GrapeConfig
from vigneron.errors import NonFinite, UserError

END = -1
# What samples that nobody will train on may hold up the end of a run.
PATIENCE_S = 2.0


class Ahead:
    """`batch_of(step)` waits for a step's batch; those that may follow it are begun before it is given."""

    def __init__(self, staleness: int, boundary: Callable[[int], int], publish: Callable[[], Any]) -> None:
        """`boundary(step)`: the next step that must see every update before it. `publish` gives out the weights as
        they are now: what it returns names them."""
        self._staleness, self._boundary, self._publish = staleness, boundary, publish
        self._asked: queue.Queue[tuple[int, Any, Callable[[int, Any], Batch]]] = queue.Queue()
        self._done: queue.Queue[tuple[int, Batch | None, BaseException | None]] = queue.Queue()
        self._begun = 0
        self._thread: threading.Thread | None = None

    def batch_of(self, step: int, make: Callable[[int, Any], Batch]) -> Batch:
        """`make(step, weights)` is called in a thread of its own, one step after the other."""
        if self._thread is None:
            # A daemon: whoever stops at once does not wait for samples that nobody will train on.
            self._thread = threading.Thread(target=self._work, name="sampling ahead", daemon=True)
            self._thread.start()
        last = min(step + self._staleness, self._boundary(step) - 1)
        if self._begun <= step:  # nothing is on its way: a line begins
            self._begin(step, last, make)
        number, batch, error = self._done.get()
        if error is not None:
            raise error
        assert number == step
        assert batch is not None
        # Only now: with a staleness of 1 nobody samples while weights are given out.
        self._begin(self._begun, last, make)
        return batch

    def _begin(self, first: int, last: int, make: Callable[[int, Any], Batch]) -> None:
        """Steps that the weights as they are now are for."""
        if first > last:
            return
        weights = self._publish()
        for each in range(first, last + 1):
            self._asked.put((each, weights, make))
        self._begun = last + 1

    def _work(self) -> None:
        while True:
            step, weights, make = self._asked.get()
            if step == END:
                return
            try:
                self._done.put((step, make(step, weights), None))
            except NonFinite as error:  # a run may pass over such a step
                self._done.put((step, None, error))
            except BaseException as error:  # of another thread: raised by the one that trains
                self._done.put((step, None, error))
                return

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """What waits is forgotten; what is on its way has a moment."""
        while not self._asked.empty():
            self._asked.get_nowait()
        self._asked.put((END, None, lambda step, weights: None))  # type: ignore[arg-type, return-value]
        if self._thread is not None:
            self._thread.join(patience_s)


def next_boundary(config: Config, step: int) -> int:
    """The first step after this one that begins behind an evaluation or a checkpoint, or the run's end."""
    every = [each for each in (config.eval_every, config.save_every) if each]
    return min([config.steps, *((step // each + 1) * each for each in every)])


def check_staleness(config: Config, total: int) -> None:
    """What a run cannot honour."""
    key, stale, method = "scale.staleness", config.scale.staleness, config.method
    if not stale:
        return
    if total > 1:
        raise UserError(f"{key}: with several ranks every step samples from the weights it trains: set it to 0")
    if method.reads != "prompts" or getattr(method, "pairs", "sampled") != "sampled":
        raise UserError(f"{key} has no effect: `method: {method.name}` samples nothing")
    if config.scale.sampling.kind == "vllm" and stale > 1:
        raise UserError(f"{key}: a vLLM server holds one version of the weights: 1 is the most")
    if isinstance(method, GrapeConfig):
        raise UserError(
            f"{key}: GRAPE draws under other texts than it trains under, and builds on the step before: use 0"
        )
    most = min([each for each in (config.eval_every, config.save_every) if each] or [config.steps])
    if stale >= most:
        raise UserError(
            f"{key}: an evaluation or a checkpoint every {most} steps leaves no room for samples that are {stale} "
            f"versions old: set it below {most}, or eval_every and save_every higher"
        )
