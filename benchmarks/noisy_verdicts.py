"""Verdicts corrupted by known noise: items of a rubric for the study of confidence (`rubric_study`).

Each function says whether an answer is right, and is wrong with a known probability. The draw is a hash of the judge's
name, the prompt and the answer, without what the check ignores: a judge at temperature 0, that repeats its errors. So
runs can be resumed exactly.

Eq. 15 of `rlmt-grape` weights an item j by its confidence φ̄ⱼ. With equal weights ω and confidences that are constant,
its reward is Σ φⱼ τⱼ / Σ φⱼ: a rubric whose items have the weights φⱼ, and all confidences 1, gives the same.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.study_store import write_once
from vigneron.data.prompts import completion_text, prompt_text
from vigneron.rewards.checkers import is_exact
from vigneron.text import normalise

ERRORS = {"careful": 0.05, "hasty": 0.25, "guessing": 0.45}
"""The probability that each judge's verdict is wrong."""


def uniform(*parts: str) -> float:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:7], "big") / 2**56


def verdicts(
    judge: str, prompts: Sequence[Any], completions: Sequence[Any], answers: Sequence[Any], error: float
) -> list[float]:
    found = []
    for prompt, completion, answer in zip(prompts, completions, answers, strict=True):
        wrong = uniform(judge, prompt_text(prompt), normalise(completion_text(completion))) < error
        found.append(float(is_exact(completion, answer) != wrong))
    return found


def careful(prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **_: Any) -> list[float]:
    return verdicts("careful", prompts, completions, answer, ERRORS["careful"])


def hasty(prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **_: Any) -> list[float]:
    return verdicts("hasty", prompts, completions, answer, ERRORS["hasty"])


def guessing(prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **_: Any) -> list[float]:
    return verdicts("guessing", prompts, completions, answer, ERRORS["guessing"])


def exact(prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **_: Any) -> list[float]:
    return verdicts("exact", prompts, completions, answer, 0.0)


NEXT = ("hasty", "guessing", "careful")


def inverse_variance(error: float) -> float:
    """(verdict − ε)/(1 − 2ε) is right on average and has the variance ε(1 − ε)/(1 − 2ε)²; of several such, the mean
    weighted by the inverse has the least variance (the paper's Lemma 8.1: no more than the plain mean's). On the
    verdict itself the weight is:"""
    return (1 - 2 * error) / (error * (1 - error))


CONFIDENCES: dict[str, dict[str, float]] = {
    "clean": {"exact": 1.0},
    "flat": dict.fromkeys(ERRORS, 1.0),
    "stated": {judge: 1 - error for judge, error in ERRORS.items()},
    "above chance": {judge: 1 - 2 * error for judge, error in ERRORS.items()},
    "inverse variance": {judge: inverse_variance(error) for judge, error in ERRORS.items()},
    "shuffled": {judge: inverse_variance(ERRORS[other]) for judge, other in zip(ERRORS, NEXT, strict=True)},
}
"""The confidence of each judge in each arm. clean: no noise. flat: not used. stated: the probability of being right, as
a calibrated judge states it. above chance: what is left of it, 1 − 2ε. inverse variance:
inverse-variance weights of independent verdicts with their bias removed. shuffled: that of the next judge."""


def rubric_file(arm: str, folder: Path) -> Path:
    return folder / f"{arm.replace(' ', '-')}.yaml"


def write_rubric(arm: str, folder: Path) -> Path:
    """A rubric with one category whose items are the judges, weighted by their confidences."""
    items = [
        {
            "name": judge,
            "description": "The answer is right.",
            "weight": weight,
            "flow": "python",
            "function": f"benchmarks.noisy_verdicts:{judge}",
        }
        for judge, weight in CONFIDENCES[arm].items()
    ]
    rubric: Mapping[str, Any] = {"version": "1", "category_column": None, "categories": {"right": {"items": items}}}
    file = rubric_file(arm, folder)
    write_once(file, yaml.safe_dump(rubric, sort_keys=False))
    return file
