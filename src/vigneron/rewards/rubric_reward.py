"""GRAPE's reward (`rlmt-grape` §6.1): every sample scored by the rubric of its category, and eq. 15 over the step.

Items that wait for somebody else, an endpoint or a sandbox, are begun while the next part of the step is sampled; the
others are scored when all samples are there. What was said of a sample is kept with it, under the rubric's version.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nan

from vigneron.data.prompts import completion_text, prompt_text
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.rewards.rubric import Rewarded, explained_shares, rewarded
from vigneron.rubric.live_rubric import Book
from vigneron.rubric.model import AnyItem, Rubric
from vigneron.rubric.rows import category_of
from vigneron.sources.verdict import Answered, Grader, Verdict
from vigneron.threads import DaemonPool

ByItem = dict[str, Verdict]


@dataclass(frozen=True)
class Scored:
    """The samples of one category: which they are, and what each item gave them."""

    category: str
    items: Sequence[AnyItem]
    samples: list[int]
    verdicts: list[ByItem]


def put_together(scored: Scored, groups: Sequence[int], *, normalise: bool, weigh: bool) -> Rewarded:
    def table(value_of: Callable[[Verdict], float]) -> torch.Tensor:
        rows = [[nan if v.score is None else value_of(v) for v in by_item.values()] for by_item in scored.verdicts]
        return torch.tensor(rows, dtype=torch.float64)

    return rewarded(
        table(lambda verdict: float(verdict.score or 0.0)),
        table(lambda verdict: verdict.confidence if weigh else 1.0),
        torch.tensor([item.weight for item in scored.items], dtype=torch.float64),
        torch.tensor([groups[i] for i in scored.samples]),
        normalise=normalise,
    )


def score_figure(sums: Sequence[float]) -> dict[str, float]:
    """The mean weighted sum of scores, whatever the confidences: one measure over time, and between runs."""
    present = [value for value in sums if value == value]
    return {"score": sum(present) / len(present)} if present else {}


def spent_figures(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Tokens of a judge that says how many it took."""
    verdicts = [verdict for entry in said for verdict in entry["items"].values()]
    spent = {f"judge/{key}": sum(verdict.get(key, 0) for verdict in verdicts) for key in ("tokens_in", "tokens_out")}
    return spent if any(spent.values()) else {}


def item_figures(scored: Scored, found: Rewarded, groups: Sequence[int]) -> dict[str, float]:
    """Of each item: its mean, spread and confidence, its failures, and its share of what the advantages are made of."""
    shares_J = explained_shares(found.contributions_BJ, torch.tensor(groups)).tolist()
    figures: dict[str, float] = {}
    for j, item in enumerate(scored.items):
        scores = torch.tensor([v[item.name].score for v in scored.verdicts if v[item.name].score is not None])
        name = f"{scored.category}/{item.name}"
        figures[f"{name}/failed"] = len(scored.verdicts) - len(scores)
        if len(scores):
            figures[f"{name}/score"] = float(scores.mean())
            figures[f"{name}/spread"] = float(scores.std(correction=0))
            figures[f"{name}/confidence"] = float(found.confidence_J[j])
        if shares_J[j] == shares_J[j]:
            figures[f"{name}/share"] = shares_J[j]
    present_B = found.rewards_B[~found.rewards_B.isnan()]
    return {**figures, **({f"{scored.category}/reward": float(present_B.mean())} if len(present_B) else {})}


# A share of fewer scores than this says little.
SMALLEST_SHARE = 100
# Items that wait side by side; how many calls an endpoint gets at once is the judge's own affair.
WAITING = 64


class RubricReward:
    """A reward of TRL's signature, and one that a step of ours begins part by part."""

    __name__ = "rubric"

    def __init__(
        self,
        book: Book,
        grader_of: Callable[[AnyItem], Grader],
        *,
        normalise: bool = False,
        weigh_by_confidence: bool = True,
        missing_limit: float = 0.05,
        notice: Callable[[str], None] = lambda text: None,
        stop: Callable[[], None] = lambda: None,
        check: Callable[[Rubric], None] = lambda rubric: None,
    ) -> None:
        """`check` refuses a rubric that does not fit the data, when the file is changed in the middle of a run."""
        self.book = book
        self._grader_of, self._notice, self._stop, self._check = grader_of, notice, stop, check
        self._normalise, self._weigh, self._missing_limit = normalise, weigh_by_confidence, missing_limit
        self._graders: dict[str, Grader] = {}
        self._pool = DaemonPool(WAITING, "rubric")
        self._asked = 0
        self._failed = 0
        self._told: set[str] = set()
        self.overlaps = self._waits(book.rubric)  # what is wrong with an item is said before anything is sampled

    def _waits(self, rubric: Rubric) -> bool:
        """Whether some item waits for somebody else. Makes all graders."""
        graders = [self._grader(item) for category in rubric.categories.values() for item in category.items]
        return any(grader.waits for grader in graders)

    def _fits(self, rubric: Rubric) -> None:
        self._check(rubric)
        self.overlaps = self._waits(rubric)

    def _grader(self, item: AnyItem) -> Grader:
        key = item.model_dump_json(exclude={"weight", "tags"})
        if key not in self._graders:
            self._graders[key] = self._grader_of(item)
        return self._graders[key]

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        arguments = {"prompts": prompts, "completions": completions, **columns}
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(prompt_text(prompt), len(numbers)) for prompt in prompts]
        return self.finish(self.begin(**arguments)(), groups, **arguments)

    def looked_at(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[tuple[str, float | None]]:
        """The category of each sample and its reward, a perfect answer's being 1; nothing is logged or counted."""
        samples = answered(prompts, completions, columns)
        begun = self.begin(prompts, completions, **columns)()
        found: list[tuple[str, float | None]] = [("", None)] * len(samples)
        for category, at in self._by_category(samples).items():
            scored = self._scored(category, at, samples, begun)
            rewards = put_together(scored, range(len(samples)), normalise=True, weigh=self._weigh).rewards_B.tolist()
            for i, reward in zip(at, rewards, strict=True):
                found[i] = category, None if reward != reward else reward
        return found

    def begin(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Callable[[], list[dict[str, Verdict]]]:
        """Scores by the items that wait; what is returned waits for them."""
        samples = answered(prompts, completions, columns)
        waiting: list[tuple[list[int], str, Future[list[Verdict]]]] = []
        for category, at in self._by_category(samples).items():
            for item in self.book.rubric.categories[category].items:
                if self._grader(item).waits:
                    future = self._pool.submit(self._grader(item), [samples[i] for i in at])
                    waiting.append((at, item.name, future))

        def wait() -> list[ByItem]:
            found: list[ByItem] = [{} for _ in samples]
            for at, name, future in waiting:
                for i, verdict in zip(at, future.result(), strict=True):
                    found[i][name] = verdict
            return found

        return wait

    def finish(
        self,
        begun: list[ByItem],
        groups: Sequence[int],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Eq. 15 over all samples of each category; None where no item is left."""
        samples = answered(prompts, completions, columns)
        rewards: list[float | None] = [None] * len(samples)
        said: list[Any] = [None] * len(samples)
        failures: Counter[str] = Counter()
        figures: dict[str, float] = {}
        sums: list[float] = []
        for category, at in self._by_category(samples).items():
            scored = self._scored(category, at, samples, begun)
            found = put_together(scored, groups, normalise=self._normalise, weigh=self._weigh)
            for i, reward, by_item in zip(at, found.rewards_B.tolist(), scored.verdicts, strict=True):
                rewards[i] = None if reward != reward else reward
                said[i] = self._said(category, by_item)
                failures.update(f"{category}.{name}: {v.why}" for name, v in by_item.items() if v.score is None)
            plain = put_together(scored, groups, normalise=False, weigh=False).rewards_B
            sums.extend(plain.tolist())
            figures |= item_figures(scored, found, [groups[i] for i in at])
            self._say_lost(scored)
            if found.rewards_B.isnan().all() and not plain.isnan().all():
                self._tell(
                    f"{category}: every confidence is 0, so eq. 15 has no value (weigh_by_confidence: false has)"
                )
        figures |= {**score_figure(sums), **spent_figures(said)}
        for name, value in figures.items() if log_metric is not None else ():
            log_metric(name, value)  # type: ignore[misc]
        if log_extra is not None:
            log_extra("rubric", said)
        self._count(sum(len(entry["items"]) for entry in said), failures)
        # Several ranks read it once, at the start: they would not all see a change in the same step.
        for text in self.book.refresh(self._fits) if ranks.world_size() == 1 else ():
            self._notice(text)
        return rewards

    def _say_lost(self, scored: Scored) -> None:
        """An item that scored nothing in a whole step is worth a line: the others then stand for it."""
        for item in scored.items:
            verdicts = [by_item[item.name] for by_item in scored.verdicts]
            if all(verdict.score is None for verdict in verdicts):
                self._tell(f"{scored.category}.{item.name} scored nothing in a step: {verdicts[0].why}")

    def _tell(self, text: str) -> None:
        """Once, however many steps it is true of."""
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def _by_category(self, samples: Sequence[Answered]) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            found[category_of(self.book.rubric, sample.row, i + 1, "the step")].append(i)
        return dict(found)

    def _scored(self, category: str, at: list[int], samples: Sequence[Answered], begun: Sequence[ByItem]) -> Scored:
        items = self.book.rubric.categories[category].items
        verdicts = [dict(begun[i]) for i in at]
        for item in items:
            if not self._grader(item).waits:
                for by_item, verdict in zip(verdicts, self._grader(item)([samples[i] for i in at]), strict=True):
                    by_item[item.name] = verdict
        return Scored(category, items, at, [{item.name: v[item.name] for item in items} for v in verdicts])

    def _said(self, category: str, by_item: ByItem) -> dict[str, Any]:
        """As it is kept with a sample: plain JSON. A confidence of 0 is said, unless there is no score to believe."""
        items = {
            name: {
                k: v
                for k, v in asdict(verdict).items()
                if v not in ("", 0, None) or k == "score" or (k == "confidence" and verdict.score is not None)
            }
            for name, verdict in by_item.items()
        }
        return {"version": self.book.version, "category": category, "items": items}

    def _count(self, asked: int, failures: Counter[str]) -> None:
        self._asked += asked
        self._failed += failures.total()
        if failures and self._failed > self._missing_limit * max(self._asked, SMALLEST_SHARE):
            why, times = failures.most_common(1)[0]
            raise UserError(
                f"reward: {self._failed} of {self._asked} scores are missing so far, above the limit of "
                f"{self._missing_limit:.0%} (reward.missing_limit); most often, {times} times in this step: {why}"
            )

    def close(self) -> None:
        """Nothing more is asked; what is under way comes to its end by itself, or with the process."""
        self._stop()
        self._pool.stop()

    def scalars(self) -> dict[str, Any]:
        return {"scores_asked": self._asked, "scores_failed": self._failed}

    def load(self, scalars: dict[str, Any]) -> None:
        self._asked, self._failed = scalars["scores_asked"], scalars["scores_failed"]


def answered(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Answered]:
    rows = [
        {"prompt": prompt, **{name: column[i] for name, column in columns.items() if name != "completion_ids"}}
        for i, prompt in enumerate(prompts)
    ]
    return [
        Answered(question_text(prompt), completion_text(completion), row)
        for prompt, completion, row in zip(prompts, completions, rows, strict=True)
    ]


def question_text(prompt: Any) -> str:
    """What was asked: of a conversation with one turn, its words."""
    if not isinstance(prompt, str) and len(prompt) == 1:
        return str(prompt[0]["content"])
    return prompt_text(prompt)
