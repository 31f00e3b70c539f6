"""judge and verify: scored by a judge, `rlmt-grape` 5b with a critique before it, 5a against the dataset's truth."""

from collections.abc import Sequence
from dataclasses import dataclass

from vigneron.rubric.model import JudgeItem, VerifyItem
from vigneron.rubric.prompts import critique_messages, score_messages, verify_messages
from vigneron.rubric.verdict import Answered, Verdict
from vigneron.sources.judges import Asked, Judge


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
