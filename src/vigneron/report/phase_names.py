"""The words for the phases of a run (`vigneron.timing`) that a terminal shows."""

import re

PHASES = {
    "rollout": "sampling",
    "reward": "waiting for rewards",
    "advantage": "computing advantages",
    "update": "updating",
    "keep samples": "writing samples",
    "evaluate": "evaluating",
    "save": "saving",
    "import": "importing torch and transformers",
    "read the data": "reading the data",
    "check the recipe": "checking the recipe",
    "hash the data": "hashing the data",
    "ask the parent": "asking the parent",
    "load the model": "loading the model",
    "load the parent": "loading the parent",
    "hash the weights": "hashing the weights",
    "copy the reference": "copying the reference",
    "prepare the model": "preparing the model",
    "check the data": "checking the data",
    "see what fits into memory": "measuring how many tokens fit into memory",
    "prepare the sampler": "preparing the sampler",
    "check the checkpoint": "checking the checkpoint",
    "restore the checkpoint": "restoring the checkpoint",
    "capture": "capturing CUDA graphs",
    "compile": "compiling layers (later runs find them in the cache)",
}

QUICK_PHASES = ("advantage", "keep samples")
"""Not worth a line of a log."""


def shown_phase(text: str) -> str:
    """The words for a phase, with the detail or the progress behind its name."""
    for name, words in PHASES.items():
        if re.fullmatch(rf"{name}( \(.*\)| \d+/\d+)?", text):
            return words + text.removeprefix(name)
    return text
