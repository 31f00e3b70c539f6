"""Asynchronous rollouts: the next steps are sampled and rewarded while the weights are updated.

Step t trains on samples of version max(v, t − k) of the weights, k being the staleness and v the version at which
prefetching began: the result does not depend on timing. Nothing is prefetched beyond a step after which the run is
evaluated or saved, so a checkpoint has no samples in flight, and a resumed run equals the uninterrupted one. (After a
checkpoint that a signal caused in between, prefetching starts again.)
"""

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.curriculum import Curriculum
from vigneron.data.prompts import Row
from vigneron.errors import NonFinite, UserError
from vigneron.policy.device import on_device
from vigneron.policy.model import Policy
from vigneron.rollout.build import Rollout
from vigneron.timing import phase

END = -1
# How long samples that will not be trained on may delay the end of a run.
CLOSE_TIMEOUT_S = 2.0


class AsyncRollout:
    """A rollout that samples and rewards batches in a background thread, from weights at most `staleness` versions old.
    It gets its rows from the curriculum; the rows that the loop passes are the same."""

    def __init__(self, rollout: Rollout, curriculum: Curriculum, config: Config, policy: Policy) -> None:
        self._rollout, self._curriculum, self._policy = rollout, curriculum, policy
        self._prefetcher = Prefetcher(config.scale.staleness, partial(next_boundary, config), self._request)

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        with phase("wait for samples"):
            batch = self._prefetcher.batch_of(step)
        return batch.with_metrics({"staleness": step - batch.signals.metrics["version"]})

    def _request(self, steps: Sequence[int]) -> list[Callable[[], Batch]]:
        """In the training thread, where the curriculum observes rewards: each step's rows, and the current weights."""
        weights = self._policy.sampler.publish()
        return [partial(self._make, self._curriculum.at(step), step, weights) for step in steps]

    def _make(self, rows: Sequence[Row], step: int, weights: Any) -> Batch:
        with on_device(self._policy.device):  # a thread has a current device of its own
            self._policy.sampler.use(weights)
            return self._rollout(rows, step).with_metrics({"version": weights.version})

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self._prefetcher.close(timeout_s)


# For steps that sample from the current weights, the functions that make their batches.
Request = Callable[[Sequence[int]], Sequence[Callable[[], Batch]]]


class Prefetcher:
    """`batch_of(step)` waits for a step's batch; the batches that may follow it are started first.

    `request` is called here, what it returns in the prefetcher's thread, one step after the other.
    """

    def __init__(self, staleness: int, boundary: Callable[[int], int], request: Request) -> None:
        """`boundary(step)`: the next step that must see every update before it."""
        self._staleness, self._boundary, self._request = staleness, boundary, request
        self._requests: queue.Queue[tuple[int, Callable[[], Batch]]] = queue.Queue()
        self._batches: queue.Queue[tuple[int, Batch | None, BaseException | None]] = queue.Queue()
        self._started = 0
        self._thread: threading.Thread | None = None

    def batch_of(self, step: int) -> Batch:
        if self._thread is None:
            # A daemon: a run that stops immediately does not wait for samples that will not be trained on.
            self._thread = threading.Thread(target=self._serve, name="async rollout", daemon=True)
            self._thread.start()
        last = min(step + self._staleness, self._boundary(step) - 1)
        if self._started <= step:  # nothing is in flight
            self._start(step, last)
        number, batch, error = self._batches.get()
        if error is not None:
            raise error
        assert number == step
        assert batch is not None
        # Only now: with a staleness of 1 nothing samples while weights are published.
        self._start(self._started, last)
        return batch

    def _start(self, first: int, last: int) -> None:
        """Request the steps that sample from the current weights."""
        if first > last:
            return
        steps = range(first, last + 1)
        for request in zip(steps, self._request(steps), strict=True):
            self._requests.put(request)
        self._started = last + 1

    def _serve(self) -> None:
        while True:
            step, make = self._requests.get()
            if step == END:
                return
            try:
                self._batches.put((step, make(), None))
            except NonFinite as error:  # a run may skip such a step
                self._batches.put((step, None, error))
            except BaseException as error:  # raised by the training thread
                self._batches.put((step, None, error))
                return

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Drop what is queued; give what is running a moment."""
        while not self._requests.empty():
            self._requests.get_nowait()
        self._requests.put((END, lambda: None))  # type: ignore[arg-type, return-value]
        if self._thread is not None:
            self._thread.join(timeout_s)


def next_boundary(config: Config, step: int) -> int:
    """The first step after this one that begins behind an evaluation or a checkpoint, or the run's end."""
    every = [each for each in (config.eval_every, config.save_every) if each]
    return min([config.steps, *((step // each + 1) * each for each in every)])


def check_staleness(config: Config, total: int) -> None:
    """Refuse a staleness that this run cannot have."""
    key, stale, method = "scale.staleness", config.scale.staleness, config.method
    if not stale:
        return
    if total > 1:
        raise UserError(f"{key}: asynchronous rollouts need a single rank: set it to 0")
    if method.reads != "prompts":
        raise UserError(f"{key} has no effect: `method: {method.name}` samples nothing")
    if config.scale.sampling.kind == "vllm" and stale > 1:
        raise UserError(f"{key}: a vLLM server holds one version of the weights: 1 is the most")
    if method.needs_rubric:
        raise UserError(f"{key}: GRAPE samples under other prompts than it trains, and revises the last step's: use 0")
    most = min([each for each in (config.eval_every, config.save_every) if each] or [config.steps])
    if stale >= most:
        raise UserError(
            f"{key}: an evaluation or a checkpoint every {most} steps leaves no room for samples that are {stale} "
            f"versions old: set it below {most}, or eval_every and save_every higher"
        )
