"""Which version of the weights is sampled from: the policy's own, unless a thread that samples ahead was given one."""

import threading
from dataclasses import dataclass
from typing import Any


class PinnedWeights(threading.local):
    """By thread: evaluation, in the one that trains, samples from the weights as they are."""

    weights: Any = None


@dataclass(frozen=True)
class Version:
    """Weights that somebody else holds, by their number."""

    version: int
