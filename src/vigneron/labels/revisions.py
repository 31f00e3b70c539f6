"""Critique and revision by principles (Constitutional AI's first phase, Bai et al. 2022): answers become better ones.

An answer is criticised by a drawn principle and revised, one to four times. A critique or a revision that is missing
leaves the row with its last good answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vigneron.data.prompts import Row, continuation
from vigneron.labels.items import digest, in_format_of
from vigneron.rubric.principle_prompts import critique_request, revision_request
from vigneron.rubric.principles import Principle
from vigneron.sources.client import Failure
from vigneron.sources.judges import Judge, TextRequest
from vigneron.sources.parents import conversation

MOST_REVISIONS = 4


@dataclass
class Revisions:
    """A row's answer as it is now. `principles` are those of the revisions that were made."""

    prompt: Any
    first: str
    answer: str
    principles: list[str] = field(default_factory=list)

    def row(self) -> Row:
        """For SFT: the prompt and its completion, in one format; and what was drawn."""
        text = continuation(self.prompt, self.answer) if isinstance(self.prompt, str) else self.answer
        (completion,) = in_format_of(self.prompt, [text])
        return {
            "prompt": self.prompt,
            "completion": completion,
            "first_answer": self.first,
            "principles": list(self.principles),
        }


@dataclass(frozen=True)
class Revised:
    """The rows, and how many requests had no reply: rows without a first answer are left out."""

    rows: list[Revisions]
    unanswered: int
    failed: int
    why: str | None


def drawn(principles: Sequence[Principle], seed: int, *key: Any) -> Principle:
    """The principle drawn for a key, such as (row, revision)."""
    return principles[int(digest(seed, *key)[:12], 16) % len(principles)]


def revise(
    model: Judge,
    prompts: Sequence[Any],
    answers: Sequence[str] | None,
    principles: Sequence[Principle],
    *,
    revisions: int,
    seed: int,
) -> Revised:
    """`answers` None: the model answers the prompts first. All rows take each step together."""
    first = model.complete([conversation(None, prompt) for prompt in prompts]) if answers is None else list(answers)
    whys = [answer.why for answer in first if isinstance(answer, Failure)]
    unanswered = len(whys)
    rows = {
        number: Revisions(prompt, answer, answer)
        for number, (prompt, answer) in enumerate(zip(prompts, first, strict=True))
        if not isinstance(answer, Failure)
    }
    for revision in range(revisions):
        by = {number: drawn(principles, seed, number, revision) for number in rows}
        critiques = model.complete(
            [critique_request(by[n], row.prompt, row.answer) for n, row in rows.items()], TextRequest(cut=True)
        )
        whys += [critique.why for critique in critiques if isinstance(critique, Failure)]
        criticised = {n: text for n, text in zip(rows, critiques, strict=True) if not isinstance(text, Failure)}
        better = model.complete(
            [revision_request(by[n], rows[n].prompt, rows[n].answer, text) for n, text in criticised.items()]
        )
        for number, answer in zip(criticised, better, strict=True):
            if isinstance(answer, Failure):
                whys.append(answer.why)
            else:
                rows[number].answer = answer
                rows[number].principles.append(by[number].name)
    return Revised(list(rows.values()), unanswered, len(whys) - unanswered, whys[0] if whys else None)
