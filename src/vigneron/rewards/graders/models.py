"""Flows that ask a model or a function of the user's: semantic, reward_model, python."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any

from vigneron.rewards.graders.checks import Render
from vigneron.rewards.model import ModelReward, sigmoid
from vigneron.rewards.semantic import SemanticReward
from vigneron.rewards.user_reward import begun, guarded, is_asynchronous, numbers
from vigneron.rubric.model import JudgeItem, PythonItem, RewardModelItem, SemanticItem, VerifyItem
from vigneron.rubric.prompts import critique_messages, score_messages, verify_messages
from vigneron.sources.embedders import Embedder
from vigneron.sources.judges import Asked, Judge
from vigneron.sources.verdict import Answered, Verdict
from vigneron.user_code import python_function


class Semantic:
    """PGSRM's reward, of the response and the reference."""

    waits = False

    def __init__(self, item: SemanticItem, render: Render, embedder: Embedder) -> None:
        self._item, self._render = item, render
        self._reward = SemanticReward(embedder, alpha=item.alpha, form=item.form)

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        references = [self._render(self._item.reference, sample) for sample in samples]
        found = self._reward([""] * len(samples), [sample.response for sample in samples], answer=references)
        return [
            Verdict.missing("the response or the reference could not be embedded")
            if score is None
            else Verdict(score, reasoning=f"similarity with the reference by '{self._item.embedder}': {score:.2f}")
            for score in found
        ]


class RewardModel:
    """A reward model's score; through the logistic function, or as it is."""

    waits = False

    def __init__(self, item: RewardModelItem, reward: ModelReward) -> None:
        self._item, self._reward = item, reward

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        return [self._verdict(score) for score in self._reward(_prompts(samples), _completions(samples))]

    def _verdict(self, score: float | None) -> Verdict:
        if score is None or not isfinite(score):
            return Verdict.missing("the reward model's score is not a number")
        said = f"the reward model's score is {score:.3g}"
        return Verdict(sigmoid(score) if self._item.squash == "sigmoid" else score, reasoning=said)


class Python:
    """A function of TRL's signature. What it raises is the user's to mend, and stops the run; None is missing."""

    def __init__(self, item: PythonItem) -> None:
        self._name = f"item '{item.name}': function '{item.function}'"
        self._function = python_function(item.function, f"item '{item.name}', function")

    @property
    def waits(self) -> bool:
        return is_asynchronous(self._function)

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        if not samples:
            return []
        names = dict.fromkeys(name for sample in samples for name in sample.row if name != "prompt")
        columns = {name: [sample.row.get(name) for sample in samples] for name in names}
        arguments = {**columns, "prompts": _prompts(samples), "completions": _completions(samples)}
        result = guarded(self._name, lambda: begun(self._function(**arguments)))
        found = guarded(self._name, result.result) if isinstance(result, Future) else result
        return [
            Verdict.missing("the function returned None")
            if score is None
            else Verdict(score, reasoning=f"the function returned {score:g}")
            for score in numbers(self._name, found, len(samples))
        ]


def _prompts(samples: Sequence[Answered]) -> list[Any]:
    return [sample.row.get("prompt", sample.question) for sample in samples]


def _completions(samples: Sequence[Answered]) -> list[Any]:
    """TRL's form: a string for a plain prompt, messages for a conversation."""
    return [
        sample.response if isinstance(prompt, str) else [{"role": "assistant", "content": sample.response}]
        for sample, prompt in zip(samples, _prompts(samples), strict=True)
    ]


@dataclass(frozen=True)
class Judged:
    item: JudgeItem | VerifyItem
    judge: Judge

    @property
    def waits(self) -> bool:
        return self.judge.waits

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        return self.judge.verdicts([self._asked(sample) for sample in samples])

    def _asked(self, sample: Answered) -> Asked:
        item, asks = self.item, self.judge.asks
        if isinstance(item, VerifyItem):
            return Asked(None, lambda _: verify_messages(item, sample, asks=asks))
        return Asked(
            critique_messages(item, sample), lambda critique: score_messages(item, sample, critique, asks=asks)
        )
