"""Scores of the runs of `rubric_study`, row by row."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.study_jobs import Job
from benchmarks.study_store import Result, evaluations, mean, row_values, scores_of
from vigneron.config import Config, RubricRewardConfig
from vigneron.data.prompts import Row, completion_text
from vigneron.rewards.checkers import is_exact
from vigneron.rewards.rubric_build import build_rubric_reward
from vigneron.rubric.prompts import feedback_of, revision_prompt
from vigneron.rubric.read import read_rubric
from vigneron.run_store.folder import RunFolder

RUBRIC = "study-forms"


class Answered(NamedTuple):
    row: Row
    text: str
    right: bool


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
    """Of the untrained model's samples. `asked`: the bare question; "prompted", after the generation prompt; "revised",
    after the revision prompt with a wrong answer to that, and what the rubric says of it."""
    from vigneron.policy.from_config import policy_from_config
    from vigneron.rollout.build import sampling_rollout
    from vigneron.training.setup.resolve import resolved

    config, each, how = resolved(config), job.labels["each"], job.labels["asked"]
    policy = policy_from_config(config)

    def sampled(rows: Sequence[Row], samples: int, seed: int) -> list[Answered]:
        batch = sampling_rollout(config, policy, group_size=samples, seed=seed)(rows)
        texts = [completion_text(completion) for completion in batch.samples.completions]
        repeated = [row for row in rows for _ in range(samples)]
        return [Answered(row, text, is_exact(text, row["answer"])) for row, text in zip(repeated, texts, strict=True)]

    found: list[Answered] = []
    lines = Path(str(config.data.train)).read_text(encoding="utf-8").splitlines()
    for part in range(0, len(lines), 32):
        rows = [json.loads(line) for line in lines[part : part + 32]]
        some = sampled([{**row, "prompt": row["guide"] + row["prompt"]} for row in rows], each, 1000 + part)
        if how == "bare":
            some = sampled(rows, each, 1000 + part)
        elif how == "revised":
            some = sampled(revisions([one for one in some if not one.right]), 1, 2000 + part)
        found += some
    success = by_category([float(one.right) for one in found], [one.row["category"] for one in found])
    folder.append("metrics.jsonl", {"step": 0, **{f"success/{name}": value for name, value in success.items()}})
    return {"success": success, "drawn": len(found)}


def revisions(answered: Sequence[Answered]) -> list[Row]:
    """Rows that ask for a better answer, as GRAPE does."""
    rubric, reward = read_rubric(RUBRIC), build_rubric_reward(RubricRewardConfig(kind="rubric", file=RUBRIC))
    said: dict[str, Sequence[Any]] = {}
    given: dict[str, Any] = {
        "prompts": [one.row["prompt"] for one in answered],
        "completions": [one.text for one in answered],
        **{name: [one.row[name] for one in answered] for name in ("answer", "category", "input")},
    }
    reward.finish(reward.begin(**given)(), range(len(answered)), **given, log_extra=said.__setitem__)
    reward.close()
    rows = []
    for one, logged in zip(answered, said["rubric"], strict=True):
        category, bare = rubric.categories[one.row["category"]], one.row["prompt"].removeprefix(one.row["guide"])
        rows.append({**one.row, "prompt": revision_prompt(category, bare, one.text, feedback_of(logged))})
    return rows
