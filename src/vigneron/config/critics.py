"""The critic that reads before every token: of REINFORCE, PPO, TRPO and OREO."""

from typing import Annotated, Literal

from pydantic import Field

from vigneron.config.values import NotNegative, Strict


class TokenValueConfig(Strict):
    """A value before every token."""

    network: Literal["head", "own"] = "head"
    """A linear head on the policy's states, which it does not shape, or a model that begins as the policy's copy."""
    coefficient: NotNegative = 0.5
    """Weight of the critic's loss."""


class TokenCriticConfig(TokenValueConfig):
    """A critic that reads before every token (eq. 4), and its loss."""

    clip: Annotated[float, Field(gt=0)] | None = None
    """How far a value may move in a step before moving it further gains nothing."""


class PpoCriticConfig(TokenCriticConfig):
    """The same critic, its values clipped by default."""

    clip: Annotated[float, Field(gt=0)] | None = 0.2
