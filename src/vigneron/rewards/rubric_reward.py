"""GRAPE's reward (`rlmt-grape` §6.1): each sample is scored by the rubric of its category, then eq. 15 over the step.

Items scored by an endpoint or in a sandbox start while the next part of the step is sampled; the others are scored when
all samples are there. Verdicts are recorded with each sample, under the rubric's version.
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
from vigneron.policy.message_forms import message_text
from vigneron.rewards.rubric import CategoryRewards, explained_shares, grape_rewards
from vigneron.rubric.live_rubric import LiveRubric
from vigneron.rubric.model import AnyItem, Rubric
from vigneron.rubric.rows import category_of
from vigneron.sources.verdict import Grader, GraderInput, Verdict
from vigneron.threads import DaemonPool

ByItem = dict[str, Verdict]


@dataclass(frozen=True)
class ScoredCategory:
    """The samples of one category, by index, with the verdicts of each."""

    category: str
    items: Sequence[AnyItem]
    samples: list[int]
    verdicts: list[ByItem]


def category_rewards(scored: ScoredCategory, groups: Sequence[int], *, normalise: bool, weigh: bool) -> CategoryRewards:
    def table(value_of: Callable[[Verdict], float]) -> torch.Tensor:
        rows = [[nan if v.score is None else value_of(v) for v in by_item.values()] for by_item in scored.verdicts]
        return torch.tensor(rows, dtype=torch.float64)

    return grape_rewards(
        table(lambda verdict: float(verdict.score or 0.0)),
        table(lambda verdict: verdict.confidence if weigh else 1.0),
        torch.tensor([item.weight for item in scored.items], dtype=torch.float64),
        torch.tensor([groups[i] for i in scored.samples]),
        normalise=normalise,
    )


def score_metric(sums: Sequence[float]) -> dict[str, float]:
    """The mean weighted sum of scores, without confidences: comparable over time and between runs."""
    present = [value for value in sums if value == value]
    return {"score": sum(present) / len(present)} if present else {}


def token_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The judge's tokens, if it reports them."""
    verdicts = [verdict for record in records for verdict in record["items"].values()]
    tokens = {f"judge/{key}": sum(verdict.get(key, 0) for verdict in verdicts) for key in ("tokens_in", "tokens_out")}
    return tokens if any(tokens.values()) else {}


def item_metrics(scored: ScoredCategory, rewards: CategoryRewards, groups: Sequence[int]) -> dict[str, float]:
    """For each item: mean score, spread, confidence, failures, and its share of the advantages' variance."""
    shares_J = explained_shares(rewards.contributions_BJ, torch.tensor(groups)).tolist()
    metrics: dict[str, float] = {}
    for j, item in enumerate(scored.items):
        scores = torch.tensor([v[item.name].score for v in scored.verdicts if v[item.name].score is not None])
        name = f"{scored.category}/{item.name}"
        metrics[f"{name}/failed"] = len(scored.verdicts) - len(scores)
        if len(scores):
            metrics[f"{name}/score"] = float(scores.mean())
            metrics[f"{name}/spread"] = float(scores.std(correction=0))
            metrics[f"{name}/confidence"] = float(rewards.confidence_J[j])
        if shares_J[j] == shares_J[j]:
            metrics[f"{name}/share"] = shares_J[j]
    present_B = rewards.rewards_B[~rewards.rewards_B.isnan()]
    return {**metrics, **({f"{scored.category}/reward": float(present_B.mean())} if len(present_B) else {})}


# What rewards are given beside the row's columns.
OF_COMPLETIONS = ("completion_ids", "completion_truncated")
# `missing_limit` applies to at least this many scores.
LIMIT_FLOOR = 100
# Items scored in parallel; the judge's own `concurrency` limits its calls.
ITEM_THREADS = 64


class RubricReward:
    """A reward with TRL's signature, and a `StepReward` that starts before the whole step is sampled."""

    __name__ = "rubric"

    def __init__(
        self,
        rubric: LiveRubric,
        grader_of: Callable[[AnyItem], Grader],
        *,
        normalise: bool = False,
        weigh_by_confidence: bool = True,
        missing_limit: float = 0.05,
        notice: Callable[[str], None] = lambda text: None,
        stop: Callable[[], None] = lambda: None,
        check: Callable[[Rubric], None] = lambda rubric: None,
    ) -> None:
        """`check` refuses a rubric that does not fit the data, if the file is edited during the run."""
        self.live_rubric = rubric
        self._grader_of, self._notice, self._stop, self._check = grader_of, notice, stop, check
        self._normalise, self._weigh, self._missing_limit = normalise, weigh_by_confidence, missing_limit
        self._graders: dict[str, Grader] = {}
        self._pool = DaemonPool(ITEM_THREADS, "rubric")
        self._scores = 0
        self._failed = 0
        self._notified: set[str] = set()
        self.overlaps = self._any_overlaps(rubric.rubric)  # a broken item raises here, before anything is sampled

    def _any_overlaps(self, rubric: Rubric) -> bool:
        """Whether any grader overlaps with sampling. Builds all graders."""
        graders = [self._grader(item) for category in rubric.categories.values() for item in category.items]
        return any(grader.overlaps for grader in graders)

    def _check_edited(self, rubric: Rubric) -> None:
        self._check(rubric)
        self.overlaps = self._any_overlaps(rubric)

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

    def normalised_rewards(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[tuple[str, float | None]]:
        """Each sample's category and its reward, on a scale where a perfect answer earns 1. Logs and counts nothing."""
        samples = grader_inputs(prompts, completions, columns)
        begun = self.begin(prompts, completions, **columns)()
        results: list[tuple[str, float | None]] = [("", None)] * len(samples)
        for category, at in self._by_category(samples).items():
            scored = self._scored(category, at, samples, begun)
            rewards = category_rewards(
                scored, range(len(samples)), normalise=True, weigh=self._weigh
            ).rewards_B.tolist()
            for i, reward in zip(at, rewards, strict=True):
                results[i] = category, None if reward != reward else reward
        return results

    def begin(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Callable[[], list[dict[str, Verdict]]]:
        """Start the items that overlap with sampling; the returned function waits for their verdicts."""
        samples = grader_inputs(prompts, completions, columns)
        waiting: list[tuple[list[int], str, Future[list[Verdict]]]] = []
        for category, at in self._by_category(samples).items():
            for item in self.live_rubric.rubric.categories[category].items:
                if self._grader(item).overlaps:
                    future = self._pool.submit(self._grader(item), [samples[i] for i in at])
                    waiting.append((at, item.name, future))

        def wait() -> list[ByItem]:
            verdicts: list[ByItem] = [{} for _ in samples]
            for at, name, future in waiting:
                for i, verdict in zip(at, future.result(), strict=True):
                    verdicts[i][name] = verdict
            return verdicts

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
        """Eq. 15 over all samples of each category; None if every item of a sample is missing."""
        samples = grader_inputs(prompts, completions, columns)
        rewards: list[float | None] = [None] * len(samples)
        records: list[Any] = [None] * len(samples)
        failures: Counter[str] = Counter()
        metrics: dict[str, float] = {}
        sums: list[float] = []
        for category, at in self._by_category(samples).items():
            scored = self._scored(category, at, samples, begun)
            weighed = category_rewards(scored, groups, normalise=self._normalise, weigh=self._weigh)
            for i, reward, by_item in zip(at, weighed.rewards_B.tolist(), scored.verdicts, strict=True):
                rewards[i] = None if reward != reward else reward
                records[i] = self._record(category, by_item)
                failures.update(f"{category}.{name}: {v.why}" for name, v in by_item.items() if v.score is None)
            plain = category_rewards(scored, groups, normalise=False, weigh=False).rewards_B
            sums.extend(plain.tolist())
            metrics |= item_metrics(scored, weighed, [groups[i] for i in at])
            self._warn_if_all_failed(scored)
            if weighed.rewards_B.isnan().all() and not plain.isnan().all():
                self._notify(
                    f"{category}: every confidence is 0, so the reward (eq. 15) is undefined: "
                    "set `weigh_by_confidence: false`, or improve the judge"
                )
        metrics |= {**score_metric(sums), **token_metrics(records)}
        for name, value in metrics.items() if log_metric is not None else ():
            log_metric(name, value)  # type: ignore[misc]
        if log_extra is not None:
            log_extra("rubric", records)
        self._count(sum(len(record["items"]) for record in records), failures)
        # With several ranks an edit is ignored: they might not all see it in the same step.
        for text in self.live_rubric.refresh(self._check_edited) if ranks.world_size() == 1 else ():
            self._notice(text)
        return rewards

    def _warn_if_all_failed(self, scored: ScoredCategory) -> None:
        """An item that fails for a whole step leaves the reward to the other items."""
        for item in scored.items:
            verdicts = [by_item[item.name] for by_item in scored.verdicts]
            if all(verdict.score is None for verdict in verdicts):
                self._notify(f"{scored.category}.{item.name} failed for every sample of a step: {verdicts[0].why}")

    def _notify(self, text: str) -> None:
        """Once per run."""
        if text not in self._notified:
            self._notified.add(text)
            self._notice(text)

    def _by_category(self, samples: Sequence[GraderInput]) -> dict[str, list[int]]:
        by_category: defaultdict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            by_category[category_of(self.live_rubric.rubric, sample.row, i + 1, "the step")].append(i)
        return dict(by_category)

    def _scored(
        self, category: str, at: list[int], samples: Sequence[GraderInput], begun: Sequence[ByItem]
    ) -> ScoredCategory:
        items = self.live_rubric.rubric.categories[category].items
        verdicts = [dict(begun[i]) for i in at]
        for item in items:
            if not self._grader(item).overlaps:
                for by_item, verdict in zip(verdicts, self._grader(item)([samples[i] for i in at]), strict=True):
                    by_item[item.name] = verdict
        return ScoredCategory(category, items, at, [{item.name: v[item.name] for item in items} for v in verdicts])

    def _record(self, category: str, by_item: ByItem) -> dict[str, Any]:
        """The JSON recorded with a sample: no empty values, but always the score, and the confidence of a score."""
        items = {
            name: {
                k: v
                for k, v in asdict(verdict).items()
                if v not in ("", 0, None) or k == "score" or (k == "confidence" and verdict.score is not None)
            }
            for name, verdict in by_item.items()
        }
        return {"version": self.live_rubric.version, "category": category, "items": items}

    def _count(self, scores: int, failures: Counter[str]) -> None:
        self._scores += scores
        self._failed += failures.total()
        if failures and self._failed > self._missing_limit * max(self._scores, LIMIT_FLOOR):
            why, times = failures.most_common(1)[0]
            raise UserError(
                f"reward: {self._failed} of {self._scores} scores are missing so far, above the limit of "
                f"{self._missing_limit:.0%} (reward.missing_limit); most frequent in this step ({times} times): {why}"
            )

    def close(self) -> None:
        """Start no more work; requests in flight finish in daemon threads."""
        self._stop()
        self._pool.stop()

    def scalars(self) -> dict[str, Any]:
        return {"scores_asked": self._scores, "scores_failed": self._failed}

    def load(self, scalars: dict[str, Any]) -> None:
        self._scores, self._failed = scalars["scores_asked"], scalars["scores_failed"]


def grader_inputs(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> list[GraderInput]:
    rows = [
        {"prompt": prompt, **{name: column[i] for name, column in columns.items() if name not in OF_COMPLETIONS}}
        for i, prompt in enumerate(prompts)
    ]
    return [
        GraderInput(question_text(prompt), completion_text(completion), row)
        for prompt, completion, row in zip(prompts, completions, rows, strict=True)
    ]


def question_text(prompt: Any) -> str:
    """The prompt as text; for a conversation of one message, its content."""
    if not isinstance(prompt, str) and len(prompt) == 1:
        return message_text(prompt[0])
    return prompt_text(prompt)
