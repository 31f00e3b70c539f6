"""The version of the weights to sample from: the current one, unless a background thread has pinned another."""

import threading
from dataclasses import dataclass
from typing import Any


class PinnedWeights(threading.local):
    """Per thread: evaluation, in the training thread, samples from the current weights."""

    weights: Any = None


@dataclass(frozen=True)
class Version:
    """A version of the weights that a server holds."""

    version: int
