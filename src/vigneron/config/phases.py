"""When a run samples."""

from typing import Literal

from vigneron.config.top_level import TopLevel

SamplingPhase = Literal["sampling", "evaluation"]


def sampling_phase(config: TopLevel, *, held_out: bool = True) -> SamplingPhase | None:
    """When completions are sampled: in every step, in evaluations alone, or never. `held_out`: whether there are rows
    to evaluate on."""
    method = config.method
    if method.trains != "policy" or method.reads == "pairs":
        return None
    if method.reads == "prompts":
        return "sampling"
    return "evaluation" if config.eval_every and held_out else None


def engine_samples(config: TopLevel, *, held_out: bool = True) -> bool:
    """Whether the training process samples, with the engine's cache."""
    return sampling_phase(config, held_out=held_out) is not None and config.scale.sampling.kind == "here"
