"""The critic that a method builds: tests compare it with one of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from vigneron.policy.logprobs import Critic


@contextmanager
def recorded_critics() -> Iterator[list[Critic]]:
    """The critics that are made inside."""
    made: list[Critic] = []
    make = Critic.of

    def record(*arguments: object, **options: object) -> Critic:
        made.append(make(*arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    with patch.object(Critic, "of", record):
        yield made
