"""The identity of a run's base model: its name and a hash of its weights, which a resume compares."""

from collections.abc import Callable, Mapping
from typing import Any

from vigneron.policy.model import Policy
from vigneron.policy.weight_files import hash_in_background, weight_files
from vigneron.timing import phase
from vigneron.training.checkpoint.read import weights_identity

Identity = dict[str, str]
OF_FILES = {"of": "files"}
"""Marks a hash of the tensors in the model's files. The first versions hashed the loaded weights, and had no mark."""


def begin_identity(name: str, policy: Policy, recorded: Mapping[str, Any] | None = None) -> Callable[[], Identity]:
    """Begin to hash a model that has just been loaded; the result waits for it.

    By the algorithm of the identity that a checkpoint has `recorded`. The loaded weights, which training changes, are
    hashed at once; files in the background.
    """
    by_files = recorded is None or recorded.get("of") == "files"
    renamed = getattr(policy.causal.config, "transformers_weights", None) is not None
    files = weight_files(name) if by_files and not renamed else []
    if not files:
        with phase("hash the weights"):
            identity = weights_identity(name, policy)
        return lambda: identity
    hashing = hash_in_background(files)

    def finish() -> Identity:
        with phase("hash the weights"):
            return {"name": name, "sha256": hashing.result(), **OF_FILES}

    return finish
