"""Labels of steps without people: continuations from each step's end, and how many of them end right.

Math-Shepherd (Wang et al. 2023). The continuations of a step share its prefix, which the engine computes once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vigneron.batch import Batch
from vigneron.data.prompts import Row, columns_of, completion_text, texts_of
from vigneron.data.steps import prefix_lengths, step_spans
from vigneron.errors import UserError
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.on_policy import OnPolicy, as_completion

# Steps of draws: solutions and their continuations.
SOLUTIONS, CONTINUATIONS = 0, 1


@dataclass(frozen=True)
class MonteCarlo:
    """Labels by a sampler with `group_size` continuations of each step. `check` says which completions are right."""

    sampler: OnPolicy
    check: Callable[[Batch], Batch]
    separator: str | None = "\n"
    hard: bool = False
    """1 for a step from which any continuation ends right, instead of their share."""

    def solutions(self, rows: Sequence[Row], count: int, first: int = 0) -> list[Row]:
        """Rows with a sampled `completion` each, `count` of every prompt; `first` is the number of rows before."""
        batch = replace(self.sampler, group_size=count)(rows, SOLUTIONS, first)
        repeated = [row for row in rows for _ in range(count)]
        texts = [completion_text(completion) for completion in batch.samples.completions]
        return [{**row, "completion": text} for row, text in zip(repeated, texts, strict=True)]

    def labelled(self, rows: Sequence[Row], first: int = 0) -> list[Row]:
        """Rows with `labels`, one for each step, and `correct`. The last step's label is whether the solution is right.

        A solution without a step is left out. `first` is the number of steps before these rows: draws are keyed by
        (seed, number of the step, number of the continuation), so they do not depend on how the rows are split.
        """
        rows = [row for row in rows if step_spans(completion_text(row["completion"]), self.separator)]
        if not rows:
            return []
        texts = [completion_text(row["completion"]) for row in rows]
        policy = self.sampler.policy
        given = [
            {"prompt": row["prompt"], "answer": text, "completion": text} for row, text in zip(rows, texts, strict=True)
        ]
        batch = Demonstrations(policy, sampled=True)(given)
        if batch.samples.truncated_B.any():
            raise UserError(f"a prompt with its solution exceeds the model's context of {policy.context_length} tokens")
        correct = self._verdicts(batch.with_samples(columns=columns_of(rows)))
        ids = batch.samples.completion_lists()
        lengths = prefix_lengths(policy.tokenizer, ids, texts, self.separator)
        inner = [(number, length) for number, row_lengths in enumerate(lengths) for length in row_lengths]
        beginnings = [tuple(ids[number][:length]) for number, length in inner]
        prompts = [(*batch.samples.prompt_ids[number], *ids[number][:length]) for number, length in inner]
        shares = iter(self._shares([rows[number] for number, _ in inner], prompts, beginnings, first))
        return [
            {**row, "labels": [*(next(shares) for _ in row_lengths), float(right)], "correct": right}
            for row, row_lengths, right in zip(rows, lengths, correct, strict=True)
        ]

    def _shares(
        self,
        rows: Sequence[Row],
        prompts: Sequence[tuple[int, ...]],
        beginnings: Sequence[tuple[int, ...]],
        first: int,
    ) -> list[float]:
        """For each prefix, the share of its continuations that end right."""
        if not rows:
            return []
        count = self.sampler.group_size
        repeated = [row for row in rows for _ in range(count)]
        names = range(first * count, (first + len(rows)) * count)
        batch = self.sampler.of_samples(repeated, [ids for ids in prompts for _ in range(count)], CONTINUATIONS, names)
        whole = [
            (*beginnings[at // count], *continued) for at, continued in enumerate(batch.samples.completion_lists())
        ]
        texts = texts_of(self.sampler.policy.tokenizer, whole)
        completions = tuple(as_completion(row["prompt"], text) for row, text in zip(repeated, texts, strict=True))
        right = self._verdicts(batch.with_samples(completions=completions))
        shares = [sum(right[at : at + count]) / count for at in range(0, len(right), count)]
        return [float(share > 0) for share in shares] if self.hard else shares

    def _verdicts(self, batch: Batch) -> list[bool]:
        verdicts = self.check(batch).signals.correct or (None,)
        if None in verdicts:
            raise UserError(
                "the checker cannot judge every solution: each row needs the reference in the column `answer`"
            )
        return [bool(verdict) for verdict in verdicts]
