"""Built-in curricula: which rows a step works on, by level, by loss or by success."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.custom import SlotOptions, with_user_options
from vigneron.config.values import Positive, Strict


class CurriculumOptions(Strict):
    """A built-in curriculum's options."""


class LevelCurriculumConfig(CurriculumOptions):
    """Easy to hard (E2H): each row of a step is drawn by its level, with probabilities that change as training
    proceeds. For every method."""

    by: Literal["level"]
    schedule: Literal["cosine", "gaussian", "balanced", "classical"] = "cosine"
    """cosine: from mostly easy to mostly hard. gaussian: a peak that moves from easy to hard. balanced: every level
    equally often. classical: one level after the other."""
    column: str = "level"
    """Column of the level: a number, higher is harder."""
    sigma: Annotated[float, Field(gt=0)] = 0.5
    """Width of the peak of `gaussian`, in levels."""
    levels: Annotated[list[float], Field(min_length=1)] | None = None
    """Train on rows of these levels only. null: all."""

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "LevelCurriculumConfig":
        if "sigma" in self.model_fields_set and self.schedule != "gaussian":
            raise ValueError(f"`sigma` has no effect with `schedule: {self.schedule}`: it is for `gaussian`")
        if self.levels is not None and len(set(self.levels)) < len(self.levels):
            raise ValueError("`levels` names a level twice")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        return {k: v for k, v in dump(self).items() if k != "sigma" or self.schedule == "gaussian"}


class LossCurriculumConfig(CurriculumOptions):
    """Self-paced learning (Kumar et al. 2010): rows whose loss is below a threshold λ that grows. The losses of all
    training rows are measured every few steps."""

    by: Literal["loss"]
    start: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the rows, those with the lowest loss, that training begins with."""
    growth: Annotated[float, Field(gt=1)] = 1.3
    """The share is multiplied by this at every measurement, up to 1: λ is the largest loss in it."""
    every: Positive = 10
    """Steps between measurements: each is a forward pass over all training rows, or a greedy completion of each."""


class SuccessCurriculumConfig(CurriculumOptions):
    """By each prompt's own running mean of success: solved prompts rest, hopeless ones wait, those in between are drawn
    most, unseen ones first."""

    by: Literal["success"]
    measure: Literal["reward", "verdict"] = "reward"
    """What success is: the reward, or the checker's verdict as 1 or 0."""
    solved: float = 0.9
    """A prompt whose mean is at least this is solved."""
    hopeless: float = 0.1
    """A prompt whose mean is at most this is hopeless."""
    rest: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How often a solved or hopeless prompt is drawn, relative to one in between."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """How much of the mean stays when the prompt is sampled again."""

    @model_validator(mode="after")
    def some_lie_in_between(self) -> "SuccessCurriculumConfig":
        if self.hopeless >= self.solved:
            raise ValueError(f"`hopeless` is {self.hopeless:g}, which is not below `solved`, {self.solved:g}")
        return self


CurriculumConfig = Annotated[
    LevelCurriculumConfig | LossCurriculumConfig | SuccessCurriculumConfig,
    Field(discriminator="by"),
    with_user_options(SlotOptions),
]
