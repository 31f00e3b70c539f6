"""Scores of the runs of `rubric_study`, row by row."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study_jobs import Job
from benchmarks.study_store import Result, evaluations, mean, row_values, scores_of
from vigneron.config import Config
from vigneron.run_store.folder import RunFolder

RUBRIC = "study-forms"


def finish_categories(job: Job, folder: RunFolder) -> Result:
    """A row's score is its reward, Σ ω τ: all items are checked by rules, with confidence 1."""
    categories = [sample.extras["rubric"]["category"] for sample in evaluations(folder.path)[0]]
    values = row_values(folder.path, "reward")
    curve = {step: by_category(values[step], categories) for step in values}
    over = by_category(scores_of(values)["area"], categories)
    return {"categories": categories, "curve": curve, "area": mean(list(over.values()))}


def by_category(values: Sequence[float], categories: Sequence[str]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for value, category in zip(values, categories, strict=True):
        found.setdefault(category, []).append(value)
    return {category: round(sum(some) / len(some), 4) for category, some in found.items()}


def measure_success(job: Job, folder: RunFolder, config: Config) -> Result:
    from vigneron.data.prompts import completion_text
    from vigneron.policy.from_config import policy_from_config
    from vigneron.rewards.checkers import is_exact
    from vigneron.rollout.build import sampling_rollout
    from vigneron.training.setup.resolve import resolved

    config, each = resolved(config), job.labels["each"]
    rows = [json.loads(line) for line in Path(str(config.data.train)).read_text(encoding="utf-8").splitlines()]
    asked = [{**row, "prompt": row["guide"] + row["prompt"]} if job.labels["prompted"] else row for row in rows]
    policy = policy_from_config(config)
    right: list[float] = []
    for part in range(0, len(asked), 32):
        some = asked[part : part + 32]
        batch = sampling_rollout(config, policy, group_size=each, seed=1000 + part)(some)
        answers = [row["answer"] for row in some for _ in range(each)]
        texts = [completion_text(completion) for completion in batch.samples.completions]
        right += [float(is_exact(text, answer)) for text, answer in zip(texts, answers, strict=True)]
    success = by_category(right, [row["category"] for row in asked for _ in range(each)])
    folder.append("metrics.jsonl", {"step": 0, **{f"success/{name}": value for name, value in success.items()}})
    return {"success": success}
