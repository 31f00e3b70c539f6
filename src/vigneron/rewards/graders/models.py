"""Graders with a model or user code: semantic, reward_model, python, and the judge flows (judge, verify)."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any

from vigneron.rewards.graders.checks import Render
from vigneron.rewards.model import ModelReward, sigmoid
from vigneron.rewards.semantic import SemanticReward
from vigneron.rewards.user_reward import checked_rewards, is_async, named_errors, started
from vigneron.rubric.model import JudgeItem, PythonItem, RewardModelItem, SemanticItem, VerifyItem
from vigneron.rubric.prompts import critique_messages, score_messages, verify_messages
from vigneron.sources.embedders import Embedder
from vigneron.sources.judges import Judge, JudgePrompts
from vigneron.sources.verdict import GraderInput, Verdict
from vigneron.user_code import python_function


class SemanticGrader:
    """PGSRM's reward of the response and the reference."""

    overlaps = False

    def __init__(self, item: SemanticItem, render: Render, embedder: Embedder) -> None:
        self._item, self._render = item, render
        self._reward = SemanticReward(embedder, alpha=item.alpha, form=item.form, clean=item.clean)

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        references = [self._render(self._item.reference, sample) for sample in samples]
        scores = self._reward([""] * len(samples), [sample.response for sample in samples], answer=references)
        return [
            Verdict.missing("the response or the reference could not be embedded")
            if score is None
            else Verdict(score, reasoning=f"similarity with the reference by '{self._item.embedder}': {score:.2f}")
            for score in scores
        ]


class RewardModelGrader:
    """A reward model's score, with or without a sigmoid."""

    overlaps = False

    def __init__(self, item: RewardModelItem, reward: ModelReward) -> None:
        self._item, self._reward = item, reward

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        tools = [sample.row.get("tools") for sample in samples]
        return [self._verdict(score) for score in self._reward(_prompts(samples), _completions(samples), tools)]

    def _verdict(self, score: float | None) -> Verdict:
        if score is None or not isfinite(score):
            return Verdict.missing("the reward model's score is not a number")
        reasoning = f"the reward model's score is {score:.3g}"
        return Verdict(sigmoid(score) if self._item.squash == "sigmoid" else score, reasoning=reasoning)


class PythonGrader:
    """A user's function with TRL's signature. An exception stops the run; None is missing."""

    def __init__(self, item: PythonItem) -> None:
        self._name = f"item '{item.name}': function '{item.function}'"
        self._function = python_function(item.function, f"item '{item.name}', function")

    @property
    def overlaps(self) -> bool:
        return is_async(self._function)

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        if not samples:
            return []
        names = dict.fromkeys(name for sample in samples for name in sample.row if name != "prompt")
        columns = {name: [sample.row.get(name) for sample in samples] for name in names}
        arguments = {**columns, "prompts": _prompts(samples), "completions": _completions(samples)}
        result = named_errors(self._name, lambda: started(self._function(**arguments)))
        values = named_errors(self._name, result.result) if isinstance(result, Future) else result
        return [
            Verdict.missing("the function returned None")
            if score is None
            else Verdict(score, reasoning=f"the function returned {score:g}")
            for score in checked_rewards(self._name, values, len(samples))
        ]


def _prompts(samples: Sequence[GraderInput]) -> list[Any]:
    return [sample.row.get("prompt", sample.question) for sample in samples]


def _completions(samples: Sequence[GraderInput]) -> list[Any]:
    """In TRL's format: a string for a plain prompt, messages for a conversation."""
    return [
        sample.response if isinstance(prompt, str) else [{"role": "assistant", "content": sample.response}]
        for sample, prompt in zip(samples, _prompts(samples), strict=True)
    ]


@dataclass(frozen=True)
class JudgeGrader:
    """A judge's verdict on one item."""

    item: JudgeItem | VerifyItem
    judge: Judge

    @property
    def overlaps(self) -> bool:
        return self.judge.overlaps

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        return self.judge.verdicts([self._prompts(sample) for sample in samples])

    def _prompts(self, sample: GraderInput) -> JudgePrompts:
        item, score_format = self.item, self.judge.score_format
        if isinstance(item, VerifyItem):
            return JudgePrompts(None, lambda _: verify_messages(item, sample, score_format=score_format))
        return JudgePrompts(
            None if item.critique is None else critique_messages(item, sample),
            lambda critique: score_messages(item, sample, critique, score_format=score_format),
        )
